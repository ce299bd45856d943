"""The alignment of groups: one number for the process, checked, and what fits the rows that are expected."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gemmgen
from gemmgen import ops


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = ops.get_mk_alignment_for_contiguous_layout()
    yield
    ops.set_mk_alignment_for_contiguous_layout(before)


def test_it_is_one_number_for_the_process() -> None:
    assert ops.get_mk_alignment_for_contiguous_layout() == 128
    ops.set_mk_alignment_for_contiguous_layout(64)
    assert ops.get_mk_alignment_for_contiguous_layout() == ops.get_m_alignment_for_contiguous_layout() == 64


@pytest.mark.parametrize("value", [0, -128, 24, 8])
def test_what_is_no_multiple_of_16_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=rf"^new_value: is {value}; must be a positive multiple of 16, such as 128"):
        ops.set_mk_alignment_for_contiguous_layout(value)
    assert ops.get_mk_alignment_for_contiguous_layout() == 128


@pytest.mark.parametrize("value", [128.0, "128", True, None])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^new_value: is a .*; must be a whole number, such as 128"):
        ops.set_mk_alignment_for_contiguous_layout(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arch", "expected", "alignment"),
    [("sm90", 1, 64), ("sm90", 65, 128), ("sm90", 4096, 128), ("sm90", None, 128), ("sm100", 20, 32), ("sm120", 3, 16)],
)
def test_the_smallest_that_keeps_an_expected_group_in_one_tile(arch: str, expected: int, alignment: int) -> None:
    with gemmgen.simulate(arch):
        assert ops.get_theoretical_mk_alignment_for_contiguous_layout(expected, 8) == alignment
        assert ops.get_theoretical_mk_alignment_for_contiguous_layout(expected_m=expected) == alignment


def test_expectations_are_checked() -> None:
    for arguments in ({"expected_m": -1}, {"num_groups": 2.5}):
        with pytest.raises(ValueError, match=r"^(expected_m|num_groups): is .*; must be a whole number"):
            ops.get_theoretical_mk_alignment_for_contiguous_layout(**arguments)  # type: ignore[arg-type]


def test_numpy_s_whole_numbers_are_some_too() -> None:
    """Callers that count with numpy would take a refusal for an architecture without an answer."""
    with gemmgen.simulate("sm100"):
        assert ops.get_theoretical_mk_alignment_for_contiguous_layout(np.int64(40)) == 64
    ops.set_mk_alignment_for_contiguous_layout(np.int32(64))
    assert type(ops.get_mk_alignment_for_contiguous_layout()) is int
    ops.set_mk_alignment_for_contiguous_layout(128)
