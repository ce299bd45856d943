"""Kernels for datacenter Blackwell on ragged problems under every schedule, bit for bit where sums are exact.

Each spec's own PTX runs in the interpreter; what the result must be comes from ``reference``, which shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import cycle

import pytest
import reference
import torch
from planted.inputs import TORCH_TYPES, laid_out
from planted.kernels import Subject

from gemmgen import catalog
from gemmgen.catalog.dense_sm100 import Factor, PairShape, bf16_gemm, scaled_gemm_nt, tf32_gemm_nt
from gemmgen.ir import DType, KernelSpec, Operand

BF16, F32 = DType.BF16, DType.F32
SHIPPED = catalog.specs()
SCHEDULES = ("early", "late", "random", "starve")
BLOCKS = ((128, 128), (32, 32), (128, 32), (32, 128))


def problem(spec: KernelSpec, m: int, n: int, k: int, clusters: int = 1) -> Subject:
    """On as few SMs as one tile needs: a CTA (or pair) walks all tiles, so that slots and phases come round."""
    return Subject(spec, m, n, k, sms=clusters * spec.cluster.size)


def bf16_family() -> Iterator[Subject]:
    """Every layout for one CTA and for pairs, both outputs, C, both store paths, widths that are no power of two."""
    yield problem(bf16_gemm("nt", PairShape(16, slots=2), F32), 129, 40, 160)
    yield problem(bf16_gemm("nt", PairShape(48), residual=True), 17, 136, 96)
    yield problem(bf16_gemm("nt", PairShape(224, slots=2)), 300, 264, 96)
    yield problem(bf16_gemm("nt", PairShape(256, slots=3), F32, residual=True), 1, 264, 224)
    yield problem(bf16_gemm("nn", PairShape(128, slots=2), F32), 129, 264, 160)
    yield problem(bf16_gemm("nn", PairShape(64), residual=True, direct_store=True), 17, 25, 32)
    yield problem(bf16_gemm("tn", PairShape(64, staging=1)), 300, 136, 160)
    yield problem(bf16_gemm("tt", PairShape(96, slots=2), residual=True), 129, 136, 160, clusters=3)
    yield problem(bf16_gemm("tt", PairShape(32), F32, direct_store=True), 136, 33, 96)
    yield problem(bf16_gemm("nt", PairShape(32, ctas=2), residual=True), 300, 40, 160)
    yield problem(bf16_gemm("nt", PairShape(96, ctas=2, slots=2), F32), 129, 136, 512)
    yield problem(bf16_gemm("nn", PairShape(256, ctas=2, slots=2)), 300, 264, 96)
    yield problem(bf16_gemm("tn", PairShape(128, ctas=2), F32, residual=True), 17, 136, 160)
    yield problem(bf16_gemm("tt", PairShape(224, ctas=2), direct_store=True), 264, 261, 96)
    yield problem(bf16_gemm("tt", PairShape(64, ctas=2, acc_slots=1)), 520, 136, 96, clusters=2)


def tf32_family() -> Iterator[Subject]:
    """fp32 factors that tf32 holds exactly."""
    yield problem(tf32_gemm_nt(PairShape(64, slots=2)), 129, 136, 160)
    yield problem(tf32_gemm_nt(PairShape(48), BF16, residual=True), 17, 24, 96)
    yield problem(tf32_gemm_nt(PairShape(128, ctas=2, slots=2)), 300, 136, 96)
    for name, m, n in (("16x128_swap", 17, 136), ("128x128", 129, 136), ("256x256", 300, 264)):
        yield problem(SHIPPED[f"sm100_tf32_gemm_nt_f32_{name}"], m, n, 96)


def mixed_family() -> Iterator[Subject]:
    """Every mix of element types, every pair of granularities, one CTA and pairs; 4-bit maps need k in 128s."""
    types = (DType.E4M3, DType.E5M2, DType.E2M1)
    blocks, widths = cycle(BLOCKS), cycle((96, 32, 64, 160, 32))
    sizes = cycle(((129, 136), (300, 40), (17, 136), (1, 24), (128, 136)))
    for number, (a, b) in enumerate([(a, b) for a in types for b in types] * 2):
        block_a, block_b = (128, 32) if a == b == DType.E2M1 else next(blocks)
        shape = PairShape(next(widths), 1 + number % 2, slots=2)
        d = (BF16, F32, F32)[number % 3]
        m, n = next(sizes)
        k = (512, 128, 384)[number % 3] if DType.E2M1 in (a, b) else (512, 160, 96, 672)[number % 4]
        spec = scaled_gemm_nt(Factor(a, block_a), Factor(b, block_b), shape, d, number % 4 == 1)
        yield problem(spec, m, n, k)


def e4m3_family() -> Iterator[Subject]:
    """All pairs of granularities where one scale word serves several K blocks of many tiles, ragged in k."""
    for (block_a, block_b), ctas in zip(BLOCKS, (2, 2, 1, 1), strict=True):
        factors = Factor(DType.E4M3, block_a), Factor(DType.E4M3, block_b)
        yield problem(scaled_gemm_nt(*factors, PairShape(32 * ctas, ctas, slots=2)), 129, 136, 608)
    yield problem(scaled_gemm_nt(*factors, PairShape(16), F32, True), 17, 24, 32)
    yield problem(scaled_gemm_nt(*factors, PairShape(48), F32, direct_store=True), 9, 91, 96)
    yield problem(scaled_gemm_nt(*factors, PairShape(256, slots=2)), 136, 264, 160)
    yield problem(scaled_gemm_nt(*factors, PairShape(128, 2, slots=2), direct_store=True), 136, 129, 160)


def mxfp4(shape: PairShape, d: DType = BF16, residual: bool = False, direct: bool = False) -> KernelSpec:
    factor = Factor(DType.E2M1, 32)
    return scaled_gemm_nt(factor, factor, shape, d, residual, direct)


def nvfp4(shape: PairShape, d: DType = BF16, residual: bool = False, direct: bool = False) -> KernelSpec:
    factor = Factor(DType.E2M1, 16)
    return scaled_gemm_nt(factor, factor, shape, d, residual, direct, DType.UE4M3X4)


def fp4_family() -> Iterator[Subject]:
    """MXFP4 and NVFP4, packed: 256 of k a block; every one of the 16 codes."""
    for gemm in (mxfp4, nvfp4):
        yield problem(gemm(PairShape(96, slots=2)), 129, 136, 608)
        yield problem(gemm(PairShape(48), F32, True), 17, 24, 96)
        yield problem(gemm(PairShape(256, slots=2), F32), 1, 264, 512)
        yield problem(gemm(PairShape(16), direct=True), 300, 21, 32)
        yield problem(gemm(PairShape(224, 2, slots=2)), 300, 264, 160)
        yield problem(gemm(PairShape(64, 2), F32), 129, 136, 800, clusters=2)


def swap_family() -> Iterator[Subject]:
    """n on the lanes: few rows, many rows, partial tiles both ways; pairs lie along n."""
    yield problem(bf16_gemm("nt", PairShape(16, swap=True, slots=2)), 1, 136, 160)
    yield problem(bf16_gemm("tt", PairShape(64, swap=True), F32, residual=True), 17, 264, 96)
    yield problem(bf16_gemm("nn", PairShape(48, swap=True, slots=2), direct_store=True), 129, 41, 160)
    yield problem(bf16_gemm("tn", PairShape(128, 2, swap=True)), 129, 264, 96)
    fine, coarse = Factor(DType.E4M3, 32), Factor(DType.E5M2, 128)
    yield problem(scaled_gemm_nt(fine, coarse, PairShape(32, swap=True, slots=2)), 40, 136, 608)
    yield problem(scaled_gemm_nt(coarse, fine, PairShape(96, 2, swap=True, slots=2), F32, True), 100, 264, 160)
    yield problem(scaled_gemm_nt(coarse, Factor(DType.E2M1, 32), PairShape(160, swap=True)), 17, 136, 384)
    yield problem(mxfp4(PairShape(64, 2, swap=True), direct=True), 129, 261, 160)
    yield problem(nvfp4(PairShape(32, swap=True), F32), 33, 136, 544)


def low_family() -> Iterator[Subject]:
    """Tiles for few rows as they ship: fp32 outputs and C, mixed factors, every granularity, other layouts."""
    yield problem(SHIPPED["sm100_bf16_gemm_nn_f32_c_16x128_swap"], 17, 136, 160)
    yield problem(SHIPPED["sm100_bf16_gemm_tt_bf16_c_64x128_swap"], 72, 136, 96)
    yield problem(SHIPPED["sm100_fp8_gemm_nt_e4m3x128_e4m3x128_f32_c_32x128_swap"], 40, 136, 608)
    yield problem(SHIPPED["sm100_fp8_gemm_nt_e4m3x32_e4m3x128_bf16_16x128_swap"], 17, 264, 160)
    yield problem(SHIPPED["sm100_fp8_gemm_nn_e4m3x128_e4m3x128_bf16_16x128_swap"], 1, 272, 160)
    yield problem(SHIPPED["sm100_fp8_fp4_gemm_nt_e4m3x128_e2m1x32_bf16_16x128_swap"], 17, 136, 640)
    yield problem(SHIPPED["sm100_fp8_fp4_gemm_nt_e2m1x32_e4m3x32_bf16_64x128_swap"], 66, 136, 128)
    yield problem(SHIPPED["sm100_mxfp4_gemm_nt_f32_c_16x128_swap"], 17, 136, 544)
    yield problem(nvfp4(PairShape(16, swap=True), BF16, True), 17, 136, 544)


def launch_family() -> Iterator[Subject]:
    """Launch control: single CTAs and pairs, with scales of both kinds, swapped, for tiles that are one or many."""
    yield problem(SHIPPED["sm100_bf16_gemm_nt_bf16_128x128_clc"], 300, 264, 96, clusters=2)
    yield problem(SHIPPED["sm100_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_256x224_clc"], 300, 264, 608, clusters=2)
    yield problem(SHIPPED["sm100_mxfp4_gemm_nt_bf16_128x128_clc"], 129, 136, 544, clusters=3)
    yield problem(nvfp4(PairShape(64, 2, launch_control=True), F32), 300, 136, 160)
    yield problem(bf16_gemm("tt", PairShape(64, swap=True, launch_control=True)), 72, 264, 96)
    yield problem(bf16_gemm("nt", PairShape(32, 2, launch_control=True), residual=True), 9, 40, 0)


def transposed_family() -> Iterator[Subject]:
    """8-bit factors that lie transposed."""
    fine, coarse = Factor(DType.E4M3, 32), Factor(DType.E5M2, 128)
    yield problem(scaled_gemm_nt(fine, coarse, PairShape(32, slots=2), F32, a_major="m"), 129, 40, 160)
    yield problem(scaled_gemm_nt(coarse, fine, PairShape(128, slots=2), b_major="n"), 17, 136, 96)
    yield problem(scaled_gemm_nt(fine, fine, PairShape(256, 2, slots=2), a_major="m", b_major="n"), 136, 272, 160)
    mixed = scaled_gemm_nt(fine, Factor(DType.E2M1, 32), PairShape(256, 2, swap=True), a_major="m")
    yield problem(mixed, 144, 136, 128)


def edge_family() -> Iterator[Subject]:
    """Nothing to add up, and one element of an output."""
    fp8 = Factor(DType.E4M3, 128)
    yield problem(bf16_gemm("nt", PairShape(32, ctas=2), residual=True), 9, 40, 0)
    yield problem(scaled_gemm_nt(fp8, fp8, PairShape(64), F32), 130, 16, 0)
    yield problem(scaled_gemm_nt(fp8, fp8, PairShape(64, 2), direct_store=True), 1, 1, 32)


FAMILIES = (
    bf16_family,
    tf32_family,
    mixed_family,
    e4m3_family,
    fp4_family,
    swap_family,
    low_family,
    launch_family,
    transposed_family,
    edge_family,
)
SUBJECTS = [subject for family in FAMILIES for subject in family()]
TWO_OF_FOUR = (("early", "random"), ("late", "starve"), ("starve", "early"), ("random", "late"))


def label(subject: Subject) -> str:
    """The kernel's name and the problem."""
    return f"{subject.spec.name.removeprefix('sm100_')}-{subject.m}x{subject.n}x{subject.k}"


@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=lambda number: label(SUBJECTS[number]))
def test_a_spec_is_exact_and_silent_under_two_schedules(number: int) -> None:
    schedules = TWO_OF_FOUR[number % len(TWO_OF_FOUR)]
    SUBJECTS[number].must_pass([(schedule, number) for schedule in schedules])


def test_scales_reach_both_ends_and_padding_is_nan() -> None:
    """What the subjects above rely on: bytes 1 and 254 occur, and 255 right behind the last scale of k."""
    subject = next(each for each in SUBJECTS if "e4m3x32_e4m3x32" in each.spec.name and each.k == 608)
    for name in ("sfa", "sfb"):
        words = subject.inputs[name].long()
        scales = torch.stack([words >> 8 * byte & 255 for byte in range(4)], dim=-1).flatten(1)
        assert {1, 2, 253, 254} <= set(scales[:, :19].unique().tolist()) and 255 not in scales[:, :19]
        assert (scales[:, 19:] == 255).all()


class Approximate(Subject):
    """Any finite codes with scales far apart: sums round, so each element has a tolerance."""

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        return {each.name: _any_codes(each, self.sizes) for each in self.spec.operands if each != self.spec.output}

    @cached_property
    def expected(self) -> torch.Tensor:
        return reference.evaluate(self.spec, self.inputs).to(TORCH_TYPES[self.spec.output.dtype])

    def _judge(self, output: torch.Tensor) -> None:
        reference.check(output, self.spec, self.inputs)


def _any_codes(operand: Operand, sizes: dict[str, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, operand.name)))
    rows, columns = sizes[operand.box[0][0]], sizes["k"]

    def codes(width: int, low: int = 0, high: int = 256) -> torch.Tensor:
        return torch.randint(low, high, (rows, width), generator=generator)

    if operand.dtype == DType.BF16:
        return laid_out(torch.randn(rows, columns, generator=generator).to(torch.bfloat16), operand)
    if operand.dtype == DType.E2M1:
        return laid_out(codes(columns // 2).to(torch.uint8), operand)
    if operand.dtype in (DType.UE8M0X4, DType.UE4M3X4):
        low, high = (120, 135) if operand.dtype == DType.UE8M0X4 else (0, 0x7F)
        words = -(-columns // int(operand.box[1].removeprefix("k/")))
        return laid_out(sum(codes(words, low, high) << 8 * byte for byte in range(4)).to(torch.int32), operand)
    finite = {DType.E4M3: 0x7F, DType.E5M2: 0x7C}[operand.dtype]
    values = (codes(columns, 0, finite) | codes(columns, 0, 2) << 7).to(torch.uint8)
    return laid_out(values.view(TORCH_TYPES[operand.dtype]), operand)


WIDE = (
    Approximate(bf16_gemm("tn", PairShape(64), F32), 40, 72, 160),
    Approximate(scaled_gemm_nt(Factor(DType.E4M3, 32), Factor(DType.E5M2, 128), PairShape(96), F32), 40, 136, 384),
    Approximate(scaled_gemm_nt(Factor(DType.E5M2, 128), Factor(DType.E2M1, 32), PairShape(64, 2)), 136, 40, 384),
    Approximate(nvfp4(PairShape(48), F32), 40, 56, 512),
)


@pytest.mark.parametrize("subject", WIDE, ids=label)
def test_any_finite_codes_stay_within_rounding(subject: Subject) -> None:
    subject.must_pass([("random", 3)])
