"""Kernels for workstation Blackwell on ragged problems under every schedule, bit for bit where sums are exact.

Each spec's own PTX runs in the interpreter; what the result must be comes from ``reference``, which shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product

import pytest
import torch
from planted.kernels import Subject
from test_sm100_runs import Approximate

from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, e4m3_gemm_nt, scaled_gemm_nt, tf32_gemm_nt
from gemmgen.catalog.shipped_sm100 import NVFP4
from gemmgen.catalog.shipped_sm120 import scaled_gemm_sm120
from gemmgen.ir import DType, KernelSpec, OneTile

BF16, F32 = DType.BF16, DType.F32
E4M3, E5M2, E2M1 = DType.E4M3, DType.E5M2, DType.E2M1
BLOCKS = ((32, 32), (32, 128), (128, 32), (128, 128))
TINY = WarpShape(16, 16, warps=(1, 1), slots=2)
TINY_64 = WarpShape(16, 16, warps=(1, 1), slots=3, k_bytes=64)
FLAT = WarpShape(16, 32, warps=(2, 1), slots=2, swap=True)


def problem(spec: KernelSpec, m: int, n: int, k: int, sms: int = 1) -> Subject:
    """On one SM unless said otherwise: a CTA walks all tiles, so that slots and phases come round."""
    return Subject(spec, m, n, k, sms=sms)


def bf16_family() -> Iterator[Subject]:
    """Every layout, both outputs, C, both store paths, 64 and 128 bytes of k, several blocks of rows and columns."""
    yield problem(bf16_gemm("nt", WarpShape(128, 128, k_bytes=64)), 129, 136, 96)
    yield problem(bf16_gemm("nt", TINY, F32), 17, 40, 160)
    yield problem(bf16_gemm("nt", TINY_64, residual=True), 33, 24, 104)
    yield problem(bf16_gemm("nn", WarpShape(64, 64, warps=(2, 1), slots=2)), 65, 72, 96)
    yield problem(bf16_gemm("nn", WarpShape(16, 64, warps=(1, 2), slots=3), F32, True), 17, 136, 160)
    yield problem(bf16_gemm("tn", WarpShape(64, 32, warps=(2, 2), slots=2, k_bytes=64), F32), 72, 40, 96)
    yield problem(bf16_gemm("tt", WarpShape(128, 16, warps=(1, 1), slots=2, k_bytes=64)), 136, 24, 72)
    yield problem(bf16_gemm("tt", WarpShape(32, 16, warps=(2, 1), slots=2), direct_store=True), 40, 21, 96)
    yield problem(bf16_gemm("nn", WarpShape(16, 256, warps=(1, 2), slots=2, k_bytes=64), direct_store=True), 9, 265, 40)
    yield problem(bf16_gemm("nt", WarpShape(32, 48, warps=(2, 1), slots=2, staging=2)), 40, 88, 104)


def plain_family() -> Iterator[Subject]:
    """fp32 factors that tf32 holds exactly, and e4m3 without scales."""
    yield problem(tf32_gemm_nt(WarpShape(32, 32, warps=(2, 1), slots=2)), 40, 40, 100)
    yield problem(tf32_gemm_nt(TINY_64, BF16, True), 17, 24, 52)
    yield problem(e4m3_gemm_nt(WarpShape(32, 32, warps=(1, 2), slots=2)), 40, 40, 304)
    yield problem(e4m3_gemm_nt(TINY_64, F32, direct_store=True), 17, 21, 176)


def fp8_family() -> Iterator[Subject]:
    """Both 8-bit types with every pair of granularities, where a word serves several K blocks or a block two words."""
    for index, (i, j) in enumerate(BLOCKS):
        for shape in (TINY, TINY_64):
            a, b = ((E4M3, E5M2), (E5M2, E4M3), (E4M3, E4M3), (E5M2, E5M2))[index]
            d, residual = (F32, index % 2 == 0) if shape is TINY else (BF16, index % 2 == 1)
            yield problem(scaled_gemm_nt(Factor(a, i), Factor(b, j), shape, d, residual), 17, 24, 1168 - 32 * index)
    fine, coarse = Factor(E4M3, 32), Factor(E4M3, 128)
    yield problem(scaled_gemm_nt(coarse, coarse, WarpShape(128, 128, k_bytes=64)), 129, 136, 160)
    yield problem(scaled_gemm_nt(fine, coarse, WarpShape(32, 64, warps=(2, 2), slots=2)), 40, 72, 608)
    direct = scaled_gemm_nt(coarse, fine, WarpShape(64, 32, warps=(2, 1), slots=2), direct_store=True)
    yield problem(direct, 65, 41, 336)


def mixed_family() -> Iterator[Subject]:
    """8 by 4 bits both ways, and 4 by 4 bits a byte each; 4-bit maps need k in 128s."""
    blocks = cycle(BLOCKS)
    for wide, swapped in product((E4M3, E5M2), (False, True)):
        for d, residual in ((BF16, False), (F32, True)):
            a, b = (E2M1, wide) if swapped else (wide, E2M1)
            i, j = next(blocks)
            yield problem(scaled_gemm_nt(Factor(a, i), Factor(b, j), TINY, d, residual), 17, 24, 640)
    spec = scaled_gemm_nt(Factor(E4M3, 128), Factor(E2M1, 32), WarpShape(32, 32, warps=(2, 1), slots=2))
    yield problem(spec, 40, 72, 384)


def mxfp4(shape: WarpShape, i: int = 32, j: int = 32, d: DType = BF16, residual: bool = False) -> KernelSpec:
    return scaled_gemm_nt(Factor(E2M1, i), Factor(E2M1, j), shape, d, residual)


def fp4_family() -> Iterator[Subject]:
    """Packed, with scales per 16, 32 and 128 of k; every one of the 16 codes; the last product reaches past k."""
    for index, (i, j) in enumerate(BLOCKS):
        yield problem(mxfp4(TINY, i, j, (F32, BF16)[index % 2], index % 2 == 0), 17, 24, 1120 + 32 * index)
        yield problem(mxfp4(TINY_64, i, j, (BF16, F32)[index % 2]), 17, 24, 1184 - 32 * index)
    for shape, k in ((TINY, 608), (TINY_64, 544), (WarpShape(32, 64, warps=(2, 2), slots=2), 336)):
        yield problem(scaled_gemm_sm120(NVFP4, shape), 40, 40, k)
    yield problem(scaled_gemm_sm120(NVFP4, TINY, F32, True, direct_store=True), 17, 21, 288)


def swap_family() -> Iterator[Subject]:
    """n on the fragments' rows: few rows, many rows, odd columns, C."""
    yield problem(bf16_gemm("nt", WarpShape(16, 128, warps=(8, 1), slots=2, swap=True)), 1, 136, 160)
    yield problem(bf16_gemm("nn", FLAT, F32, True), 33, 41, 96)
    yield problem(bf16_gemm("tt", FLAT), 24, 57, 72)
    fine, coarse = Factor(E4M3, 32), Factor(E5M2, 128)
    yield problem(scaled_gemm_nt(fine, coarse, FLAT, F32, True), 17, 41, 672)
    yield problem(scaled_gemm_nt(coarse, Factor(E2M1, 32), FLAT), 17, 40, 640)
    yield problem(mxfp4(FLAT, 128, 32), 9, 39, 672)
    yield problem(scaled_gemm_sm120(NVFP4, FLAT, F32), 17, 33, 544)


def split_family() -> Iterator[Subject]:
    """Splits that begin at words of scales, some without any K block; one CTA does all, or each its own."""
    yield problem(bf16_gemm("nt", WarpShape(16, 16, warps=(1, 1), slots=2, splits=3)), 17, 40, 608, sms=3)
    yield problem(bf16_gemm("nt", WarpShape(32, 32, warps=(2, 2), slots=2, splits=4)), 40, 72, 160)
    fine, coarse = Factor(E4M3, 32), Factor(E4M3, 128)
    thin = WarpShape(16, 16, warps=(1, 1), slots=3, k_bytes=64, splits=2)
    yield problem(scaled_gemm_nt(coarse, fine, thin, residual=True), 17, 24, 1632, sms=2)
    yield problem(scaled_gemm_nt(fine, coarse, thin, F32), 17, 24, 480)
    flat = WarpShape(16, 32, warps=(2, 1), slots=2, swap=True, splits=3)
    yield problem(scaled_gemm_nt(coarse, coarse, flat, F32, True), 17, 41, 1632, sms=5)
    yield problem(mxfp4(flat), 17, 40, 1120, sms=2)
    yield problem(scaled_gemm_sm120(NVFP4, flat), 9, 33, 800, sms=6)


def edge_family() -> Iterator[Subject]:
    """Nothing to add up, one element, two CTAs an SM, a CTA a tile, an early launch, a loop that is unrolled."""
    fp8 = Factor(E4M3, 128)
    yield problem(bf16_gemm("nt", TINY, residual=True), 9, 24, 0)
    yield problem(bf16_gemm("nt", WarpShape(16, 16, warps=(1, 1), slots=2, splits=2)), 9, 24, 0)
    yield problem(scaled_gemm_nt(fp8, fp8, TINY, direct_store=True), 1, 1, 32)
    yield problem(bf16_gemm("nt", WarpShape(64, 64, warps=(2, 2), k_bytes=64, ctas_per_sm=2)), 72, 136, 160)
    yield problem(scaled_gemm_nt(fp8, fp8, WarpShape(16, 16, warps=(1, 1), slots=3, unroll=4)), 17, 24, 1168)
    yield problem(bf16_gemm("nt", TINY).replace(schedule=OneTile()), 17, 24, 96, sms=3)
    yield problem(bf16_gemm("nt", TINY).replace(programmatic_launch=True), 17, 24, 96)


def trap_family() -> Iterator[Subject]:
    """Bugs that others had on this chip, each with the input that showed it."""
    fine, coarse = Factor(E4M3, 32), Factor(E4M3, 128)
    # granularities of the two factors mixed up: in rows of scales (5), in what is kept for several K blocks (6), and
    # by exchanging the factors (38)
    yield problem(scaled_gemm_nt(coarse, fine, TINY_64), 16, 16, 1088)
    yield problem(scaled_gemm_nt(fine, coarse, TINY_64), 16, 16, 1088)
    yield problem(scaled_gemm_nt(coarse, fine, FLAT), 16, 32, 1088)
    # C counted twice, or transposed, where the factors are exchanged (37)
    yield problem(scaled_gemm_nt(coarse, coarse, FLAT, BF16, True), 24, 40, 160)
    # splits that begin inside a word, and their sums under exchanged factors (39)
    flat = WarpShape(16, 32, warps=(2, 1), slots=2, k_bytes=64, swap=True, splits=2)
    yield problem(scaled_gemm_nt(coarse, fine, flat), 17, 41, 1632, sms=2)
    # fp32 outputs of 17 to 32 rows stored past their end, pairs of an odd row, one column (40)
    for m, n, d in ((25, 33, F32), (17, 1, F32), (31, 3, BF16), (1, 1, BF16)):
        yield problem(bf16_gemm("nt", FLAT, d), m, n, 96)
    yield problem(bf16_gemm("nt", TINY, F32, direct_store=True), 17, 1, 96)


FAMILIES = (
    bf16_family,
    plain_family,
    fp8_family,
    mixed_family,
    fp4_family,
    swap_family,
    split_family,
    edge_family,
    trap_family,
)
SUBJECTS = [subject for family in FAMILIES for subject in family()]
TWO_OF_FOUR = (("early", "random"), ("late", "starve"), ("starve", "early"), ("random", "late"))


def label(subject: Subject) -> str:
    """The kernel's name and the problem."""
    return f"{subject.spec.name.removeprefix('sm120_')}-{subject.m}x{subject.n}x{subject.k}"


@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=lambda number: label(SUBJECTS[number]))
def test_a_spec_is_exact_and_silent_under_two_schedules(number: int) -> None:
    schedules = TWO_OF_FOUR[number % len(TWO_OF_FOUR)]
    SUBJECTS[number].must_pass([(schedule, number) for schedule in schedules])


WIDE = (
    Approximate(bf16_gemm("tn", WarpShape(64, 16, warps=(2, 1), slots=2), F32), 40, 24, 160),
    Approximate(scaled_gemm_nt(Factor(E4M3, 32), Factor(E5M2, 128), TINY_64, F32), 24, 40, 384),
    Approximate(scaled_gemm_nt(Factor(E5M2, 128), Factor(E2M1, 32), TINY), 24, 24, 384),
    Approximate(scaled_gemm_nt(Factor(E2M1, 16), Factor(E2M1, 16), TINY, F32, scale=DType.UE4M3X4), 24, 24, 512),
)


@pytest.mark.parametrize("subject", WIDE, ids=label)
def test_any_finite_codes_stay_within_rounding(subject: Subject) -> None:
    subject.must_pass([("random", 3)])


def test_sums_of_splits_do_not_depend_on_who_comes_last() -> None:
    """Sums that round: one CTA after the other, and all at once under every schedule, give the same bits."""
    spec = bf16_gemm("nt", WarpShape(16, 16, warps=(1, 1), slots=2, splits=4), F32)
    results = []
    for sms in (1, 4):
        subject = Recorded(spec, 16, 16, 512, sms=sms)
        subject.must_pass([(schedule, 5) for schedule in ("early", "late", "random", "starve")])
        results += subject.results
    assert len(results) == 8 and all(torch.equal(each, results[0]) for each in results)


class Recorded(Approximate):
    """Keeps every result."""

    @property
    def results(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self.__dict__.setdefault("_results", [])
        return found

    def _judge(self, output: torch.Tensor) -> None:
        super()._judge(output)
        self.results.append(output.clone())
