"""Reductions across a group's rows, of its columns and of all it has, and of groups without rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from grouped import Layout, Problem, by_counts, by_ends, by_ids, reduced_every_way
from planted.k_grouped import of_k_groups
from reduced import reduced

import gemmgen
from gemmgen import sim
from gemmgen.backends import lower
from gemmgen.catalog import (
    Shape,
    WarpShape,
    accumulating,
    bf16_gemm,
    dense_sm100,
    dense_sm120,
    fp8_gemm_nt,
    in_k_groups,
    in_row_groups,
)
from gemmgen.catalog.dense_sm100 import Factor, PairShape
from gemmgen.ir import AnyPlan, DType, Gate, KernelSpec, KGroups, Reduce, Residual
from gemmgen.ops import kernels
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.simulation import SCHEDULES

COARSE, FINE = Factor(DType.E4M3, 128), Factor(DType.E4M3, 32)
SIDES, PAIR = WarpShape(32, 32, warps=(2, 2), slots=2), PairShape(32, ctas=2)


def gated(spec: KernelSpec) -> KernelSpec:
    """Half as many columns, of which reductions see what is left."""
    d = spec.output.replace(box=("m", "n/2"))
    operands = tuple(d if each.name == d.name else each for each in spec.operands)
    halved = spec.replace(name=f"{spec.arch}_gated", operands=operands, epilogue=(Gate(), *spec.epilogue))
    return reduced_every_way(halved, 1, "n/2")


SPECS: dict[str, Callable[[], KernelSpec]] = {
    "sm90": lambda: reduced_every_way(bf16_gemm("nt", Shape(64, 32, groups=1, slots=3))),
    "sm90 tall": lambda: reduced_every_way(fp8_gemm_nt(Shape(256, 16, unroll=1))),
    "sm90 side by side": lambda: reduced_every_way(fp8_gemm_nt(Shape(64, 64, groups=1, width=32, unroll=1))),
    "sm90 pair with rows for one": lambda: reduced_every_way(bf16_gemm("nt", Shape(128, 32, cluster=(2, 1), unroll=1))),
    "sm90 gate": lambda: gated(bf16_gemm("nt", Shape(64, 64, groups=1))),
    "sm100": lambda: reduced_every_way(dense_sm100.scaled_gemm_nt(COARSE, FINE, PairShape(32))),
    "sm100 pair": lambda: reduced_every_way(dense_sm100.bf16_gemm("nt", PAIR)),
    "sm120": lambda: reduced_every_way(dense_sm120.bf16_gemm("nt", SIDES)),
    "sm120 gate": lambda: gated(dense_sm120.scaled_gemm_nt(COARSE, COARSE, WarpShape(16, 64, warps=(1, 1), slots=2))),
}
LAYOUTS: dict[str, Callable[[], Layout]] = {
    "offsets": lambda: by_ends((0, 37, 0, 130, 1, 0), 1, tail=3),
    "padded": lambda: by_ends((5, 0, 64, 129), 64),
    "counts": lambda: by_counts((0, 140, 1, 33, 0), 150),
    "nothing": lambda: by_ends((0, 0, 0), 1, tail=70),
}


def run(name: str, layout: str, schedule: str = "random") -> list[dict[str, torch.Tensor]]:
    """Judged by the reference; groups without rows must have zeros."""
    dense = SPECS[name]()
    if layout == "ids":
        given = by_ids((0, 37, 0, 130, 1, 0), dense.tile.m * dense.cluster.m, tail=1)
    else:
        given = LAYOUTS[layout]()
    by = layout if layout in ("ids", "counts") else "ends"
    spec = in_row_groups(dense, by, 64 if layout == "padded" else 1)
    return Problem(dense, spec, given, n=144, k=200).run(schedule, seed=len(name))


@pytest.mark.parametrize("layout", ["offsets", "counts"])
@pytest.mark.parametrize("name", SPECS)
def test_every_group_has_its_own(name: str, layout: str) -> None:
    run(name, layout)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "sm90 pair with rows for one"])
def test_ids_say_whose_a_tile_is(name: str) -> None:
    """But for pairs of tiles on sm90, which may be two groups'."""
    run(name, "ids")


@pytest.mark.parametrize("name", ["sm90", "sm100 pair", "sm120"])
def test_where_groups_are_padded_and_where_none_has_rows(name: str) -> None:
    run(name, "padded")
    run(name, "nothing")


@pytest.mark.parametrize("name", ["sm90 side by side", "sm100", "sm120"])
def test_the_same_bits_under_every_schedule(name: str) -> None:
    first, *others = [run(name, "offsets", schedule) for schedule in SCHEDULES]
    for other in others:
        for left, right in zip(first, other, strict=True):
            assert all(
                torch.equal(*(each[name].reshape(-1).view(torch.uint8) for each in (left, right))) for name in left
            )


def test_counters_are_a_groups_own() -> None:
    """As many as groups and columns, so that no group waits for another's warps."""
    plan = kernel_of(in_row_groups(SPECS["sm120"](), "ends")).plan
    per = {each.name: each.per for each in plan.workspaces}
    assert per["column_arrivals"] == ("n", "g") and per["whole_arrivals"] == ("g",)


COLUMN = "CLUSTER_N + column, "
MISTAKES = {
    "a group takes its tiles to be more": (f"{COLUMN}share", f"{COLUMN}{{group, share.ahead, share.warps + 1, 0}}"),
    "a group takes its tiles to be fewer": (f"{COLUMN}share", f"{COLUMN}{{group, share.ahead, share.warps - 1, 0}}"),
    "two warps leave theirs at one place": ("line(share.part, 0)", "line(share.part / 2, 0)"),
    "two warps leave their totals at one place": ("groups.put(share.part, ", "groups.put(share.part / 2, "),
    "groups have one counter": ("share.group * gemmgen::ceil_div(p.n, TILE_N * CLUSTER_N) * CLUSTER_N + ", ""),
    "groups have one memory": (f"{COLUMN}share", f"{COLUMN}{{group, 0, share.warps, 0}}"),
    "a group's result is the first one's": ("p.sums + group * p.sums_group, meeting", "p.sums, meeting"),
    "rows of others count": ("first_pair + pair, m, rows)", "first_pair + pair, m, p.m)"),
    "groups without rows are forgotten": ("Schedule::each_empty(p.m, p.g,", "Schedule::each_empty(p.m, 0,"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (each.replace("{group,", "gemmgen::Share{share.group,") for each in MISTAKES[name])
    right = kernels.render

    def wrong(plan: AnyPlan) -> str:
        return right(plan).replace(before, after)

    monkeypatch.setattr(kernels, "render", wrong)
    dense = SPECS["sm90"]().replace(name=f"mistake_{list(MISTAKES).index(name)}")
    spec = in_row_groups(dense, "ends")
    assert after in kernel_of(spec).text.source != right(lower(spec))
    problem = Problem(dense, spec, LAYOUTS["offsets"](), n=144, k=200)
    with pytest.raises((AssertionError, sim.SimulationError)):
        for schedule in SCHEDULES:
            problem.run(schedule)


def test_groups_by_ids_need_not_lie_in_one_piece() -> None:
    """Tiles of 64 rows of groups 1, 0, none, 1 and 3; the reference sums up what belongs together."""
    dense = SPECS["sm90"]()
    ids = torch.full((5 * 64,), -1, dtype=torch.int32)
    for tile, group, count in ((0, 1, 64), (1, 0, 3), (3, 1, 20), (4, 3, 64)):
        ids[64 * tile :][:count] = group
    a, b = torch.randint(-3, 4, (320, 128)).bfloat16(), torch.randint(-3, 4, (4, 72, 128)).bfloat16()
    with gemmgen.simulate("sm90", schedule="random", seed=3, sms=2):
        found = dict(zip(("d", "squares", "sums", "tops", "total"), call(a, b, ids, dense), strict=True))
    for group in range(4):
        own = ids == group
        wanted = a[own].double() @ b[group].double().t()
        assert torch.equal(found["d"][own], wanted.bfloat16())
        assert torch.equal(found["sums"][group].double(), wanted.sum(0))
        assert torch.equal(found["tops"][group].double(), wanted.abs().amax(0) if own.any() else wanted.sum(0))
        assert found["total"][group] == wanted.sum()


def call(a: torch.Tensor, b: torch.Tensor, ids: torch.Tensor, dense: KernelSpec) -> tuple[torch.Tensor, ...]:
    """The kernel of groups by ids."""
    found = gemmgen.op(in_row_groups(dense, "ids"))(a=a, b=b, layout=ids)
    assert isinstance(found, tuple)
    return found


def of_k(spec: KernelSpec, by: str = "counts", alignment: int = 1, apart: bool = False, first: int = 0) -> KernelSpec:
    """What groups of k make of it, reduced behind the chain's first steps."""
    return in_k_groups(reduced_every_way(spec, first), by, alignment, apart)


K_SPECS: dict[str, Callable[[], KernelSpec]] = {
    "sm90": lambda: of_k(bf16_gemm("tn", Shape(64, 32, groups=1, slots=2, unroll=1), DType.F32)),
    "sm90 what c adds": lambda: of_k(bf16_gemm("tn", Shape(64, 32, groups=1, slots=2), DType.F32, True), first=1),
    "sm90 pair": lambda: of_k(bf16_gemm("tn", Shape(128, 64, slots=2, unroll=1, cluster=(2, 1))), "ends", 16),
    "sm90 apart, beside products": lambda: of_k(
        fp8_gemm_nt(Shape(128, 64, slots=2, unroll=1, overlap=True), DType.F32, sfb_columns=1), "counts", 128, True
    ),
    "sm90 added": lambda: of_k(accumulating(bf16_gemm("tn", Shape(64, 32, groups=1, slots=2), DType.F32))),
    "sm100": lambda: of_k(dense_sm100.bf16_gemm("tn", PairShape(64, slots=2), DType.F32)),
    "sm100 pair": lambda: of_k(
        dense_sm100.scaled_gemm_nt(COARSE, COARSE, PairShape(256, 2, slots=2), DType.F32, a_major="m", b_major="n"),
        "ends", 32,
    ),
    "sm120": lambda: of_k(dense_sm120.bf16_gemm("tn", WarpShape(64, 64, warps=(2, 2), slots=2), DType.F32)),
}  # fmt: skip


def run_groups_of_k(spec: KernelSpec, counts: tuple[int, ...], schedule: str) -> None:
    """Outputs, and what each is reduced to, beside float64."""
    unit = 128 if isinstance(spec.groups, KGroups) and spec.groups.apart else 32
    subject = of_k_groups(spec, tuple(count * unit for count in counts), m=136, n=72)
    names = [each.name for each in spec.outputs]
    with gemmgen.simulate(str(spec.arch), schedule=schedule, seed=len(counts), sms=3):
        given = {"d": torch.zeros(len(counts), 136, 72)} if spec.accumulates else {}
        found = dict(zip(names, gemmgen.op(spec)(**subject.inputs, **given), strict=True))  # type: ignore[call-overload]
    assert torch.equal(found["d"], subject.expected)
    for group, span in enumerate(subject.spans):
        sums = subject.sums(*span)
        if isinstance(spec.epilogue[0], Residual):
            sums += subject.inputs["c"][group]
        for step in spec.epilogue:
            if isinstance(step, Reduce):
                exact, allowed = reduced(step, sums, torch.zeros_like(sums))
                assert bool(((found[step.to][group] - exact).abs() <= allowed).all()), (step.to, group)


@pytest.mark.parametrize("name", K_SPECS)
def test_every_group_of_k_has_its_own(name: str) -> None:
    """Groups without any of k, too, whose products are 0 and reduce to that: first, last, between others and alone."""
    for schedule, counts in zip(SCHEDULES, ((0, 2, 0, 0, 3), (1, 2, 0), (0, 0), (4,)), strict=True):
        run_groups_of_k(K_SPECS[name](), counts, schedule)


OF_TILE = "const u32 group = tile.group(), rows"
K_MISTAKES = {
    "rows of all groups are the first one's": ("p.squares + group * p.squares_group", "p.squares"),
    "groups have one counter for columns": (
        "share.group * gemmgen::ceil_div(p.n, TILE_N * CLUSTER_N) * CLUSTER_N + ", "",
    ),
    "nobody comes where nothing is added": (OF_TILE, f"if (k_blocks == 0) continue;\n    {OF_TILE}"),
    "a group's result is the first one's": ("p.sums + group * p.sums_group, meeting", "p.sums, meeting"),
    "two warps leave their totals at one place": ("groups.put(share.part, ", "groups.put(share.part / 2, "),
}  # fmt: skip


@pytest.mark.parametrize("name", K_MISTAKES)
def test_a_mistake_in_groups_of_k_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = K_MISTAKES[name]
    right = kernels.render
    monkeypatch.setattr(kernels, "render", lambda plan: right(plan).replace(before, after))
    spec = K_SPECS["sm90 added"]()
    spec = spec.replace(name=f"k_mistake_{list(K_MISTAKES).index(name)}")
    assert kernel_of(spec).text.source != right(lower(spec))
    with pytest.raises((AssertionError, sim.SimulationError)):
        for schedule in SCHEDULES:
            run_groups_of_k(spec, (0, 2, 0, 3), schedule)


def test_what_groups_of_k_reduce_to_is_each_ones_own() -> None:
    spec = K_SPECS["sm90"]()
    shared = tuple(each.replace(box=("m",)) if each.name == "squares" else each for each in spec.operands)
    with pytest.raises(ValueError, match=r"groups of k: 'squares' has box \('m',\).*put 'g' first"):
        spec.replace(operands=shared)
