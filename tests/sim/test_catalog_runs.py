"""Whole families of specs, as shipped and beyond, on ragged problems under every schedule, bit for bit.

Each spec's own PTX runs in the interpreter; what the result must be comes from ``reference``, which shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from planted.kernels import Subject

from gemmgen.catalog import BF16_LAYOUTS, Shape, bf16_gemm, fp8_gemm_nt
from gemmgen.ir import DType, KernelSpec, OneTile

SCHEDULES = ("early", "late", "random", "starve")
NARROW = Shape(64, 32, groups=1, slots=2)
NARROW_SPLIT = Shape(64, 32, groups=1, slots=2, splits=2)


def one_tile(spec: KernelSpec) -> KernelSpec:
    """The same kernel with a CTA for every tile."""
    return KernelSpec.model_validate({**spec.model_dump(), "schedule": OneTile()})


def bf16_family() -> Iterator[Subject]:
    """Every layout, with and without C, both outputs and both store paths, on problems ragged in m, n and k."""
    for index, layout in enumerate(BF16_LAYOUTS):
        for d in (DType.BF16, DType.F32):
            residual = (index % 2 == 0) == (d == DType.BF16)
            yield Subject(bf16_gemm(layout, Shape(64, 128, groups=1), d, residual), 72, 136, 104)
            yield Subject(bf16_gemm(layout, NARROW, d, not residual, direct_store=True), 65, 33, 72)


def fp8_family() -> Iterator[Subject]:
    """Every layout of scales, with and without C, both outputs and both store paths; k is no multiple of 128."""
    for sfb_columns in (128, 1):
        for sfa_major in ("m", "k"):
            for d in (DType.BF16, DType.F32):
                residual = (sfb_columns == 1) == (d == DType.F32)
                choices = d, residual, sfa_major, sfb_columns
                yield Subject(fp8_gemm_nt(Shape(64, 128, groups=1), *choices), 70, 264, 144)
                yield Subject(fp8_gemm_nt(NARROW, d, not residual, sfa_major, sfb_columns, True), 65, 33, 272)


def cluster_family() -> Iterator[Subject]:
    """Pairs along m and along n, with tiles that stick out of the matrix, and two clusters on four SMs."""
    for cluster in ((2, 1), (1, 2)):
        wide = Shape(128, 64, slots=2, cluster=cluster)
        yield Subject(bf16_gemm("nt", wide), 200, 136, 136, sms=2)
        yield Subject(bf16_gemm("tn", wide, residual=True), 136, 72, 72, sms=4)
        yield Subject(fp8_gemm_nt(wide), 136, 136, 272, sms=4)
        yield Subject(fp8_gemm_nt(wide, DType.F32, True, "k", 1), 136, 72, 144, sms=2)


def shape_family() -> Iterator[Subject]:
    """Widths of the instruction, blocks of rows and columns, warpgroups, two CTAs an SM, deep K blocks, one buffer."""
    for width in (8, 16, 24, 40, 48, 96, 104):
        spec = bf16_gemm("nt", Shape(64, width, groups=1, slots=2))
        yield Subject(spec, 24, 2 * width - 8 if width > 8 else 24, 72)
    for width in (8, 24, 72):
        yield Subject(fp8_gemm_nt(Shape(64, width, groups=1, slots=3)), 24, width + 16, 272)
    yield Subject(fp8_gemm_nt(Shape(128, 256, width=128, slots=2)), 136, 264, 144)
    yield Subject(fp8_gemm_nt(Shape(256, 64, slots=2)), 200, 72, 144)
    yield Subject(bf16_gemm("nt", Shape(192, 48, groups=3)), 200, 56, 72)
    yield Subject(fp8_gemm_nt(Shape(192, 48, groups=3, slots=2)), 200, 56, 272)
    yield Subject(fp8_gemm_nt(Shape(192, 80, groups=3, width=40, slots=2)), 200, 96, 144)  # two products a warpgroup
    yield Subject(bf16_gemm("nn", Shape(128, 256, unroll=1, slots=2)), 136, 264, 72)
    yield Subject(bf16_gemm("nt", Shape(64, 64, groups=1, ctas_per_sm=2)), 72, 136, 72, sms=2)
    yield Subject(bf16_gemm("nt", Shape(64, 16, groups=1, k_bytes=256)), 24, 40, 264)
    yield Subject(bf16_gemm("tt", Shape(64, 128, groups=1, staging=1), DType.F32), 72, 136, 72)


def schedule_family() -> Iterator[Subject]:
    """A CTA for every tile, and the early launch of dependents."""
    yield Subject(one_tile(bf16_gemm("nt", NARROW)), 72, 72, 72, sms=3)
    yield Subject(one_tile(fp8_gemm_nt(NARROW, residual=True)), 72, 72, 144, sms=3)
    yield Subject(one_tile(fp8_gemm_nt(Shape(128, 64, slots=2, cluster=(2, 1)))), 136, 72, 144, sms=2)
    yield Subject(fp8_gemm_nt(NARROW, programmatic_launch=True), 72, 40, 144)
    yield Subject(bf16_gemm("nn", NARROW, programmatic_launch=True), 72, 40, 72)


def cut_family() -> Iterator[Subject]:
    """Tiles of the last wave cut along n: fewer tiles than SMs, whole waves before, parts past the edge, none cut."""
    for cut, n in ((3, 200), (2, 104)):
        narrow = Shape(128, 32 * cut, slots=2, cut=cut)
        yield Subject(fp8_gemm_nt(narrow), 200, n, 272, sms=4)
        yield Subject(bf16_gemm("nt", narrow, DType.F32, residual=True), 136, 2 * n, 72, sms=3)
    wide = Shape(128, 128, slots=2, cut=4)
    yield Subject(fp8_gemm_nt(wide, DType.F32, True, "k", 1), 136, 200, 144, sms=7)
    yield Subject(fp8_gemm_nt(wide, residual=True), 72, 136, 144, sms=2)
    yield Subject(fp8_gemm_nt(Shape(128, 256, width=128, unroll=1, cut=2)), 264, 264, 272, sms=4)
    yield Subject(bf16_gemm("nt", Shape(128, 64, slots=2, cut=2), direct_store=True), 136, 97, 72, sms=3)


def overlap_family() -> Iterator[Subject]:
    """Epilogues beside the next tile's products: several tiles a CTA, one, none, no K block, and cut tiles behind."""
    two = Shape(128, 64, width=32, slots=2, overlap=True)
    yield Subject(fp8_gemm_nt(two), 264, 136, 400, sms=2)
    yield Subject(fp8_gemm_nt(replace(two, m=256, width=None)), 264, 136, 144)
    yield Subject(fp8_gemm_nt(two, DType.F32, True), 136, 72, 0)
    yield Subject(fp8_gemm_nt(two, DType.F32, True, "k", 1), 136, 136, 272)
    yield Subject(fp8_gemm_nt(replace(two, width=None, cluster=(2, 1))), 264, 136, 272, sms=2)
    yield Subject(fp8_gemm_nt(Shape(128, 96, slots=3, cut=3, overlap=True)), 264, 200, 400, sms=2)
    yield Subject(fp8_gemm_nt(Shape(128, 96, slots=2, cut=3, overlap=True)), 136, 296, 144, sms=7)


def edge_family() -> Iterator[Subject]:
    """One row, one column block, one K block, nothing to add up."""
    yield Subject(bf16_gemm("nt", NARROW), 1, 8, 8)
    yield Subject(bf16_gemm("nt", NARROW, residual=True), 9, 8, 0)
    yield Subject(fp8_gemm_nt(NARROW), 1, 8, 16)
    yield Subject(fp8_gemm_nt(NARROW, DType.F32, True), 9, 24, 0)
    yield Subject(bf16_gemm("nt", NARROW, direct_store=True), 3, 1, 16)
    yield Subject(fp8_gemm_nt(NARROW, direct_store=True), 3, 7, 128)


def push_family() -> Iterator[Subject]:
    """Clusters that share K blocks: none, shares of columns and of fragments, more CTAs than slices or blocks."""
    yield Subject(fp8_gemm_nt(Shape(64, 64, groups=1, splits=1, ctas_per_sm=2)), 20, 72, 784)
    yield Subject(fp8_gemm_nt(Shape(64, 96, groups=1, splits=2, slots=2)), 20, 136, 784)  # two rows of scales a tile
    yield Subject(fp8_gemm_nt(NARROW_SPLIT, programmatic_launch=True), 20, 24, 4240)  # scales of more than 32 blocks
    yield Subject(fp8_gemm_nt(Shape(64, 8, groups=1, splits=8, slots=2)), 20, 16, 272)  # 4 slices, 3 blocks, 8 CTAs
    yield Subject(bf16_gemm("nt", Shape(128, 48, splits=4, slots=2)), 70, 40, 456)
    yield Subject(bf16_gemm("nn", NARROW_SPLIT, DType.F32, True, direct_store=True), 65, 33, 200)
    yield Subject(bf16_gemm("nt", Shape(64, 16, groups=1, k_bytes=256, splits=2)), 24, 40, 0)
    # atoms of 64 side by side, whose distance stands where a cluster's addresses have the rank
    yield Subject(bf16_gemm("nn", Shape(64, 96, groups=1, splits=2, slots=2)), 24, 136, 200)
    yield Subject(bf16_gemm("tt", Shape(128, 64, splits=3, slots=2)), 136, 72, 456)


def part_family() -> Iterator[Subject]:
    """Last tiles in boxes of some rows: one, several, all of them; beside whole tiles; under every walk over tiles."""
    for m in (1, 17, 48, 49, 80, 128 + 33):
        yield Subject(fp8_gemm_nt(replace(NARROW, part_rows=16)), m, 40, 272)
    yield Subject(fp8_gemm_nt(replace(NARROW, part_rows=8), DType.F32, True, "k", 1), 9, 40, 272)
    yield Subject(fp8_gemm_nt(replace(NARROW, part_rows=32), direct_store=True), 70, 33, 144)
    yield Subject(bf16_gemm("nt", Shape(64, 16, groups=1, k_bytes=256, part_rows=32)), 88, 40, 264)  # two atoms
    yield Subject(bf16_gemm("nn", Shape(128, 64, slots=2, part_rows=32)), 200, 72, 136)
    yield Subject(bf16_gemm("nt", Shape(192, 48, groups=3, part_rows=64)), 250, 56, 72)
    yield Subject(fp8_gemm_nt(Shape(128, 96, slots=3, cut=3, part_rows=32)), 136, 200, 400, sms=2)
    yield Subject(fp8_gemm_nt(Shape(128, 64, width=32, slots=2, overlap=True, part_rows=32)), 264, 136, 400, sms=2)
    rounds = Shape(64, 64, groups=1, slots=2, unroll=1, rounds=True, strips=2, part_rows=16)
    yield Subject(fp8_gemm_nt(rounds), 80, 136, 640)
    yield Subject(fp8_gemm_nt(replace(NARROW_SPLIT, part_rows=32), programmatic_launch=True), 20, 24, 784)
    yield Subject(bf16_gemm("nt", Shape(128, 48, splits=4, slots=2, part_rows=32)), 70, 40, 456)
    yield Subject(fp8_gemm_nt(Shape(128, 64, slots=2, cluster=(2, 1), part_rows=32)), 150, 72, 272, sms=2)
    yield Subject(fp8_gemm_nt(Shape(32, 64, groups=1, swap=True, slots=2, part_rows=8)), 43, 136, 272)


def share_family() -> Iterator[Subject]:
    """K blocks shared of tiles that fill no wave: behind whole waves, all, none; more CTAs than blocks or tiles."""
    shared = replace(NARROW, share=True)
    yield Subject(fp8_gemm_nt(shared), 70, 136, 1040, sms=4)  # ten tiles: two waves, then two CTAs a tile
    yield Subject(fp8_gemm_nt(shared), 65, 40, 1936, sms=9)  # four tiles, two CTAs each; one CTA has none
    yield Subject(fp8_gemm_nt(shared), 70, 72, 1040, sms=3)  # six tiles fill two waves: nobody meets
    yield Subject(fp8_gemm_nt(shared, DType.F32, True, "k", 1), 9, 72, 1040, sms=7)
    yield Subject(fp8_gemm_nt(shared, residual=True), 9, 24, 0, sms=3)  # no K blocks to share
    yield Subject(bf16_gemm("nt", replace(shared, n=48, part_rows=32)), 80, 136, 712, sms=11)
    yield Subject(bf16_gemm("nn", shared, DType.F32, True, direct_store=True), 65, 33, 712, sms=5)
    yield Subject(bf16_gemm("nt", Shape(128, 64, slots=2, share=True, raster=1)), 300, 72, 520, sms=8)  # idle warps
    yield Subject(bf16_gemm("nt", Shape(192, 48, groups=3, slots=2, share=True)), 200, 56, 520, sms=9)
    yield Subject(bf16_gemm("nt", replace(shared, ctas_per_sm=2), programmatic_launch=True), 70, 72, 520, sms=4)
    strips = Shape(64, 64, groups=1, slots=2, unroll=1, rounds=True, strips=2, share=True)
    yield Subject(fp8_gemm_nt(strips), 64, 200, 1936, sms=3)
    yield Subject(fp8_gemm_nt(Shape(192, 48, groups=3, slots=2, share=True)), 200, 56, 1040, sms=9)


FAMILIES = (
    share_family,
    bf16_family,
    fp8_family,
    cluster_family,
    shape_family,
    schedule_family,
    cut_family,
    overlap_family,
    edge_family,
    push_family,
    part_family,
)
SUBJECTS = [subject for family in FAMILIES for subject in family()]


def label(subject: Subject) -> str:
    """The kernel's name and the problem."""
    kind = "" if subject.spec.schedule.kind == "persistent" else f"-{subject.spec.schedule.kind}"
    return f"{subject.spec.name.removeprefix('sm90_')}{kind}-{subject.m}x{subject.n}x{subject.k}"


@pytest.mark.parametrize("subject", SUBJECTS, ids=label)
def test_a_spec_is_exact_and_silent_under_every_schedule(subject: Subject) -> None:
    subject.must_pass([(schedule, 0) for schedule in SCHEDULES])
