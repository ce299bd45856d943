"""Mistakes planted in the PTX of our own kernels: each is found, and reported in the words of the spec."""

from __future__ import annotations

import re

import pytest
from planted.edits import EDITS, Edit
from planted.kernels import Timing, WrongResult, names, subject

from gemmgen import sim

TIMINGS: tuple[Timing, ...] = (("early", 0), ("late", 0), ("random", 0), ("starve", 0), ("random", 1), ("starve", 1))


def first_report(edit: Edit) -> Exception | str | None:
    """What finds the mistake first: an error, a wrong result or a warning."""
    module = edit.subject.load(edit.ptx)
    warnings: list[str] = []
    for timing in TIMINGS:
        try:
            warnings += edit.subject.run(module, timing).warnings
        except (sim.SimulationError, WrongResult) as error:
            return error
    return warnings[0] if warnings else None


@pytest.mark.parametrize("name", names())
def test_the_unedited_kernel_is_right_and_silent_under_every_timing(name: str) -> None:
    subject(name).must_pass(TIMINGS)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_a_planted_mistake_is_found(edit: Edit) -> None:
    report = first_report(edit)
    assert report is not None, "the mistake went unnoticed"
    assert not isinstance(report, sim.ParseError | sim.UnknownInstruction), "the edit made no PTX"
    assert re.search(edit.says, str(report)), str(report)


def report_of(name: str) -> str:
    report = first_report(next(edit for edit in EDITS if edit.name == name))
    assert report is not None
    return f"{type(report).__name__}: {report}"


def test_a_race_names_slot_and_both_roles_and_the_cuda_line() -> None:
    text = report_of("full_wait_deleted@fp8")
    assert re.search(r"^Race: sm90_fp8_gemm_nt\w*, CTA \(0, 0, 0\), warp \d+ \(math\): `ld\.shared", text)
    assert "spec: roles.math: wgmma drains ring ab)" in text
    assert re.search(r"\.cu:\d+ via memory\.cuh:\d+", text)
    assert re.search(r"ab\.sfb\[0\].*reads it, but warp 1 \(load\) wrote it", text)


def test_a_deadlock_says_what_each_role_waits_for() -> None:
    lines = report_of("release_deleted@bf16_nt").splitlines()
    assert lines[0].startswith("Deadlock: ")
    load = next(line for line in lines if "warp 0 (load)" in line and "try_wait" in line)
    assert "ab.empty[0]" in load and "4 of 4 arrivals pending" in load and "spec: roles.load" in load
    assert any("(math)" in line and "ab.full[0]" in line for line in lines)


def test_wrong_bytes_show_as_bytes_outstanding() -> None:
    assert re.search(r"ab\.full\[0\].*-128 bytes outstanding", report_of("expects_too_few_bytes@fp8"))
    assert re.search(r"ab\.full\[0\].* 128 bytes outstanding", report_of("expects_too_many_bytes@fp8"))


def test_a_slot_released_early_names_copy_and_reader() -> None:
    text = report_of("slot_released_before_its_products_have_ended@fp8")
    assert re.search(
        r"ab\.a\[\d\].*issued by warp 0 \(load\).*writes it while warp \d+ \(math\) may still read it", text
    )


def test_an_access_outside_an_operand_names_it() -> None:
    text = report_of("scales_past_the_matrix@fp8_rows")
    assert re.search(r"^OutOfBounds: .*sfa: access of 4 bytes at offset \d+, but it has 1152 bytes", text)


def test_a_peer_that_has_left_is_named() -> None:
    assert re.search(r"CTA \(\d, 0, 0\) \(rank \d\), which has already exited", report_of(PEER))


PEER = "cluster_not_synchronised_before_exit@fp8_pair"
