"""Groups of k on the simulator: every output exact, whatever lies between groups and wherever one is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from planted.k_grouped import KSubject, of_k_groups
from planted.kernels import WrongResult
from planted.ptx_text import Statement, delete, find
from planted.ptx_text import replace as replaced

from gemmgen import sim
from gemmgen.backends import lower
from gemmgen.catalog import PairShape, Shape, WarpShape, bf16_gemm, dense_sm100, dense_sm120, fp8_gemm_nt
from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.grouped import in_k_groups
from gemmgen.ir import DType, KernelSpec

SCHEDULES = ("early", "late", "random", "starve")
NARROW = Shape(64, 32, groups=1, slots=2, unroll=1)
PAIRS = {cluster: Shape(128, 64, slots=2, unroll=1, cluster=cluster) for cluster in ((1, 1), (2, 1), (1, 2))}
FLAT = WarpShape(16, 32, warps=(2, 1), slots=2, swap=True)
RAGGED = (37, 0, 70)


def fp8(shape: Shape, residual: bool = True) -> KernelSpec:
    """Factors that lie group by group, a scale for 1x128 of each."""
    return in_k_groups(fp8_gemm_nt(shape, DType.F32, residual, sfb_columns=1), "counts", 128, apart=True)


def hostile() -> Iterator[KSubject]:
    """Run under every schedule: empty groups, ends anywhere, two warpgroups, pairs with an odd number of tiles."""
    yield of_k_groups(in_k_groups(bf16_gemm("tn", NARROW, DType.F32, True), "counts"), (0, 128, 0, 256), 72, 40)
    yield of_k_groups(in_k_groups(bf16_gemm("tn", PAIRS[1, 1], DType.BF16), "ends", 16), RAGGED, 136, 72)
    yield of_k_groups(in_k_groups(bf16_gemm("tn", PAIRS[2, 1], DType.F32, True), "counts"), RAGGED, 264, 40, 4)
    yield of_k_groups(in_k_groups(bf16_gemm("tn", PAIRS[1, 2], DType.F32), "ends", 32), (16, 48), 72, 136, 2)
    yield of_k_groups(fp8(NARROW), (128, 0, 128, 256), 72, 24)
    yield of_k_groups(fp8(replace(PAIRS[1, 1], overlap=True)), (0, 256, 0, 128), 136, 40)
    yield of_k_groups(fp8(PAIRS[2, 1]), (128, 0, 256), 136, 40, 2)


def blackwell(of_k: int, shape: PairShape, by: str = "counts", alignment: int = 1) -> KernelSpec:
    """On sm100: e4m3 factors with a scale for so much of k, words of which every group begins anew; 0 for bf16."""
    if of_k == 0:
        spec = dense_sm100.bf16_gemm("tn", shape, DType.F32, residual=True)
    else:
        factor = Factor(DType.E4M3, of_k)
        spec = dense_sm100.scaled_gemm_nt(factor, factor, shape, DType.F32, True, a_major="m", b_major="n")
    return in_k_groups(spec, by, alignment)


def on_sm100() -> Iterator[KSubject]:
    """One CTA a tile and pairs, a word of scales for one K block and for four, k that ends inside a step."""
    yield of_k_groups(blackwell(0, PairShape(64, slots=2)), (0, 37, 128, 0), 136, 40)
    yield of_k_groups(blackwell(0, PairShape(128, 2, slots=2)), RAGGED, 136, 72, 2)
    yield of_k_groups(blackwell(0, PairShape(64, swap=True, slots=2), "ends", 16), (40, 0, 20), 72, 136)
    yield of_k_groups(blackwell(128, PairShape(128, slots=2), "ends", 32), (32, 0, 576), 80, 40)
    yield of_k_groups(blackwell(32, PairShape(256, 2, slots=2)), (33, 0, 160), 136, 48, 2)


def on_sm120() -> Iterator[KSubject]:
    """bf16 along m and n, e4m3 along k; a word of scales for eight K blocks and for two; swapped."""
    bf16 = dense_sm120.bf16_gemm("tn", WarpShape(64, 64, warps=(2, 2), slots=2), DType.F32, True)
    yield of_k_groups(in_k_groups(bf16, "counts"), RAGGED, 72, 40)
    for of_k, shape in ((128, WarpShape(32, 32, warps=(2, 1), slots=3, k_bytes=64)), (32, FLAT)):
        factor = Factor(DType.E4M3, of_k)
        scaled = dense_sm120.scaled_gemm_nt(factor, factor, shape, DType.F32, True)
        yield of_k_groups(in_k_groups(scaled, "ends", 16), (33, 0, 165 if of_k == 32 else 608), 40, 36)


def further() -> Iterator[KSubject]:
    """One group, none of k at all, long k on less than a tile, many tiles, outputs that are stored by lanes."""
    plain = in_k_groups(bf16_gemm("tn", NARROW, DType.F32), "counts")
    added = in_k_groups(bf16_gemm("tn", NARROW, DType.BF16, True, direct_store=True), "ends")
    yield of_k_groups(plain, (144,), 64, 32)
    yield of_k_groups(plain, (0, 0, 0), 72, 40, 2)
    yield of_k_groups(added, (0, 0), 65, 33)
    yield of_k_groups(added, (1, 0, 15, 65, 0), 65, 33, 3)
    yield of_k_groups(plain, (1040, 0), 8, 8)
    yield of_k_groups(fp8(NARROW), (128,) * 9, 64, 32, 4)
    yield of_k_groups(
        in_k_groups(bf16_gemm("tn", Shape(64, 128, groups=1, slots=2), DType.F32), "ends", 160), (40, 200), 8, 768, 4
    )


@pytest.mark.parametrize("subject", [*hostile(), *on_sm100(), *on_sm120()], ids=lambda subject: subject.spec.name)
def test_every_output_is_exact_under_every_schedule(subject: KSubject) -> None:
    subject.must_pass((name, 0) for name in SCHEDULES)


@pytest.mark.parametrize("subject", list(further()), ids=lambda subject: f"{subject.spec.name}-{len(subject.spans)}")
def test_every_output_is_exact(subject: KSubject) -> None:
    subject.must_pass([("random", 0)])


def _clearing(text: str, opcode: str) -> list[Statement]:
    """Statements of that kind where rows of the next group are cleared, in front of the barrier of those that clear."""
    barrier = next(each for each in find(text, "bar.sync") if len(each.operands) == 2)
    return [each for each in find(text, opcode) if each.start <= barrier.start]


@pytest.mark.parametrize(
    ("opcode", "says"),
    [("st.shared::cluster.v4", "elements differ"), ("fence.proxy.async.shared::cluster", r"ab\.[ab]")],
)
def test_rows_that_a_pair_does_not_clear_are_found(opcode: str, says: str) -> None:
    subject = next(each for each in on_sm100() if each.spec.cluster.size == 2)
    module = subject.load(delete(subject.ptx, find(subject.ptx, opcode)))
    with pytest.raises((sim.SimulationError, WrongResult), match=says):
        for schedule in SCHEDULES:
            subject.run(module, (schedule, 0))


@pytest.mark.parametrize(
    ("opcode", "says"),
    [
        ("st.shared.v4", r"elements differ"),
        ("bar.sync", r"ab\.(a|b|empty)\[\d\]"),
        ("fence.proxy.async", r"ab\.[ab]\[\d\].*proxy"),
    ],
)
def test_rows_that_are_not_cleared_or_not_yet_are_found(opcode: str, says: str) -> None:
    subject = next(each for each in hostile() if each.spec.output.dtype == DType.BF16)
    found = [each for each in _clearing(subject.ptx, opcode) if len(each.operands) != 1]
    module = subject.load(delete(subject.ptx, found))
    with pytest.raises((sim.SimulationError, WrongResult), match=says):
        for schedule in SCHEDULES:
            subject.run(module, (schedule, 0))


ONE_TILE = of_k_groups(fp8(replace(NARROW, slots=4)), (128, 128, 0, 128, 256), 64, 32)
"""A K block or two a group: maps of the group before the last are in use when they are edited anew."""


@pytest.mark.parametrize(
    ("opcode", "which", "says"),
    [
        ("tensormap.replace.tile.global_address", slice(0, 1), r"elements differ"),
        ("tensormap.replace.tile.global_stride", slice(0, 2), r"elements differ|tensor map"),
        ("fence.proxy.tensormap::generic.release", slice(None), r"tensor map"),
        ("fence.proxy.tensormap::generic.acquire", slice(0, 1), r"tensor map"),
    ],
)
def test_maps_that_are_not_edited_or_not_handed_over_are_found(opcode: str, which: slice, says: str) -> None:
    module = ONE_TILE.load(delete(ONE_TILE.ptx, find(ONE_TILE.ptx, opcode)[which]))
    with pytest.raises((sim.SimulationError, WrongResult), match=says):
        for schedule in SCHEDULES:
            ONE_TILE.run(module, (schedule, 0))


def test_maps_edited_while_copies_still_use_them_are_found() -> None:
    text = ONE_TILE.ptx
    edit = find(text, "tensormap.replace")[0]
    wait = [each for each in find(text, "mbarrier.try_wait") if each.start < edit.start][-1]
    module = ONE_TILE.load(replaced(text, wait, "setp.eq.u32 p, 0, 0;"))
    ONE_TILE.must_pass([("late", 0)])
    assert any("changes a tensor map that" in warning for warning in ONE_TILE.run(module, ("late", 0)).warnings)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            lambda: in_k_groups(bf16_gemm("nt", NARROW), "counts"),
            r"'a' is k-contiguous; groups of k that share a matrix",
        ),
        (lambda: in_k_groups(bf16_gemm("tn", NARROW), "counts", 64, apart=True), r"'a' is m-contiguous; groups of k"),
        (lambda: in_k_groups(fp8_gemm_nt(NARROW), "counts", 64, apart=True), r"must be a multiple of tile.k = 128"),
        (
            lambda: in_k_groups(dense_sm120.e4m3_gemm_nt(FLAT), "counts"),
            r"'a' is e4m3, .* use 8-bit ones and an alignment of 16",
        ),
        (lambda: in_k_groups(fp8_gemm_nt(NARROW), "ends", 128, apart=True), r"so use counts and a multiple of 16"),
    ],
)
def test_what_cannot_be_lowered_is_refused(spec: Callable[[], KernelSpec], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        lower(spec())
