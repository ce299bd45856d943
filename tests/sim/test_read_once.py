"""Operands that a launch reads once: with L2's hint where they are few, without it where they are many."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from planted.kernels import Subject

import gemmgen
from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt, in_row_groups
from gemmgen.ir import READ_ONCE_BYTES, KernelSpec, TmaLoad
from gemmgen.ops.kernels import kernel_of

STREAM = Shape(64, 32, groups=1, slots=2, stream=True)
SUBJECTS = (
    Subject(bf16_gemm("nt", STREAM), 72, 72, 136),
    Subject(bf16_gemm("nn", STREAM, programmatic_launch=True), 72, 40, 136),
    Subject(fp8_gemm_nt(Shape(8, 64, groups=1, slots=2, splits=2, swap=True)), 13, 136, 400, sms=6),
    Subject(fp8_gemm_nt(replace(STREAM, splits=1)), 20, 72, 784),
)


def hinted(spec: KernelSpec, *names: str) -> KernelSpec:
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    roles = (role.replace(body=body.replace(evict_first=names)) if role is spec.load else role for role in spec.roles)
    return spec.replace(roles=tuple(roles))


def text(spec: KernelSpec) -> str:
    return kernel_of(spec).text.source


def test_python_knows_the_limit_of_the_header() -> None:
    header = (Path(gemmgen.__file__).parent / "cuda/gemmgen/in_turn.cuh").read_text()
    (found,) = re.findall(r"bytes <= u64\((\d+)\) << 20", header)
    assert int(found) << 20 == READ_ONCE_BYTES


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.spec.name)
def test_many_weights_are_copied_right_without_the_hint(subject: Subject) -> None:
    """The limit in the PTX becomes 15 bytes, so that the copies that carry no policy are those that run."""
    many, comparisons = re.subn(f"\\b({READ_ONCE_BYTES}|{READ_ONCE_BYTES + 1})\\b", "15", subject.ptx)
    unhinted, copies = re.subn(r"cp\.async\.bulk\.tensor[^;]*L2::cache_hint[^;]*;", "trap;", many)
    assert comparisons >= 1 and copies >= 1
    module = subject.load(unhinted)
    for schedule in ("early", "random"):
        assert not subject.run(module, (schedule, 0)).warnings


@pytest.mark.parametrize("m", [33, 64, 80, 161])
def test_a_hint_goes_with_boxes_of_some_rows(m: int) -> None:
    spec = hinted(fp8_gemm_nt(Shape(64, 32, groups=1, slots=2, part_rows=16)), "a", "b")
    assert "full, parts, a_goes_first)" in text(spec)
    Subject(spec, m, 40, 272).must_pass([("early", 0), ("random", 1)])


def test_all_groups_count() -> None:
    grouped = in_row_groups(bf16_gemm("nt", replace(STREAM, swap=True, n=64)), "counts")
    assert "b_goes_first = gemmgen::drop_first(2 * u64(p.g) * p.n * p.k);" in text(grouped)
    assert "full, b_goes_first, tile.group());" in text(grouped)
    assert "a_goes_first = gemmgen::drop_first(u64(p.m) * p.k);" in text(hinted(fp8_gemm_nt(STREAM), "a"))
