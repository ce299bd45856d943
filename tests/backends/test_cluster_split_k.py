"""A cluster that shares a tile's K blocks: what is refused, who owns what, what a launch waits for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import emit, lower
from gemmgen.backends.limits import shared_limit
from gemmgen.catalog import Shape, dense_sm100
from gemmgen.ir import Arch, Cluster, ClusterSplitK, DType, Gate, KernelSpec, Operand, Reduce, Role
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.arguments import grid_size, workspace_bytes

SPLIT = catalog.fp8_gemm_nt(Shape(64, 32, groups=1, splits=2))
SM100 = dense_sm100.bf16_gemm("nt", dense_sm100.PairShape(64))


def split(n: int, splits: int, groups: int = 1, **fields: Any) -> KernelSpec:
    return catalog.fp8_gemm_nt(Shape(64 * groups, n, groups=groups, splits=splits, **fields))


def loading(spec: KernelSpec, **changes: Any) -> dict[str, tuple[Role, ...]]:
    return {"roles": tuple(each.replace(**changes) if each.name == "load" else each for each in spec.roles)}


def reducing(spec: KernelSpec) -> dict[str, Any]:
    sums = Operand(name="sums", dtype=DType.F32, box=("m",))
    reduce = Reduce(function="sum", along="n", to="sums")
    return {"operands": (*spec.operands, sums), "epilogue": (reduce, *spec.epilogue)}


def gated(spec: KernelSpec) -> dict[str, Any]:
    operands = tuple(each.replace(box=("m", "n/2")) if each.name == "d" else each for each in spec.operands)
    return {"operands": operands, "epilogue": (Gate(layout="interleaved"), *spec.epilogue)}


REFUSALS: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "another architecture": (SM100, {"schedule": ClusterSplitK()}, "cluster_split_k, which sm100 does not have; use"),
    "multicast": (SPLIT, {"cluster": Cluster(m=2)}, "and a cluster that multicasts; its CTAs have unlike K blocks"),
    "reductions": (SPLIT, reducing(SPLIT), "and reduces to 'sums'; tiles of a reduction are stored by one CTA"),
    "many loading warps": (SPLIT, loading(SPLIT, warps=2), "warps that multiply come first, then one that loads"),
    "narrow gates": (
        catalog.bf16_gemm("nt", Shape(64, 32, groups=1, splits=4)),
        gated(catalog.bf16_gemm("nt", Shape(64, 32, groups=1, splits=4))),
        "CTAs own slices of 8 columns, but a gate takes 16 at a time; use fewer splits or a wider tile",
    ),
    "several blocks": (split(32, 2, width=16), {}, "and 1 x 2 blocks a warpgroup; use one"),
    "gathered scales": (
        catalog.fp8_gemm_nt(Shape(64, 32, groups=1, splits=2), sfa_major="k"),
        {},
        "whose one loading thread cannot copy 'sfa' by TMA; lay it out along its rows",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_does_not_fit_is_refused(what: str) -> None:
    spec, changes, sentence = REFUSALS[what]
    with pytest.raises(ValueError) as raised:
        lower(spec.replace(**changes))
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("n", "splits", "groups", "columns", "slices", "per_cta"),
    [
        (32, 2, 1, 16, 8, 4),
        (112, 2, 1, 56, 8, 4),
        (64, 4, 1, 16, 16, 4),
        (32, 8, 1, 8, 16, 2),
        (32, 7, 1, 8, 16, 3),
        (48, 8, 2, 8, 48, 6),
    ],
)
def test_slices_are_equal_shares_of_columns_or_single_fragments(
    n: int, splits: int, groups: int, columns: int, slices: int, per_cta: int
) -> None:
    push = lower(split(n, splits, groups)).push
    assert push is not None
    assert (push.columns, push.slices, push.per_cta) == (columns, slices, per_cta)
    assert push.bytes == per_cta * splits * columns * 16 * 4 and push.buffers % 16 == 0
    assert push.full == push.buffers + push.bytes


def test_two_ctas_share_an_sm_with_their_buffers() -> None:
    plan = lower(split(64, 4, ctas_per_sm=2))
    assert plan.push is not None
    assert plan.push.full + 8 <= plan.shared_bytes <= shared_limit(Arch.SM90, 2)
    ring = plan.mainloop
    assert ring.empty + 8 * ring.slots <= plan.push.buffers


def test_one_cta_a_tile_pushes_nothing() -> None:
    plan = lower(split(64, 1))
    assert plan.push is None and plan.launched_together == 1
    assert "push" not in emit(split(64, 1))


def test_a_launch_has_a_cluster_for_every_tile_and_no_workspace() -> None:
    plan = lower(SPLIT)
    sizes = {"m": 65, "n": 96, "k": 128}
    assert grid_size(plan, sizes, sms=1) == 2 * 3 * 2  # more than are resident at once: CTAs have one tile
    assert workspace_bytes(plan, sizes, 1) == {}
    assert kernel_of(SPLIT).text.cluster == (2, 1, 1)


def test_only_weights_are_read_before_a_launch_waits() -> None:
    text = emit(catalog.fp8_gemm_nt(Shape(64, 32, groups=1, splits=2), programmatic_launch=True))
    load = text[text.index("DEVICE void load(") : text.index("DEVICE void math(")]
    before, after = load.split("ptx::wait_for_prerequisites();")
    assert re.findall(r"ab::(\w+)::load", before) == ["B"]
    assert re.findall(r"ab::(\w+)::load", after) == ["A", "SFA", "A", "B", "SFA"]
    math = text[text.index("DEVICE void math(") :]
    assert math.index("LaneScales") < math.index("wait_for_prerequisites") < math.index("StagedStore")


def test_without_a_promise_nothing_is_read_before_a_launch_waits() -> None:
    spec = catalog.fp8_gemm_nt(Shape(64, 32, groups=1, splits=2), programmatic_launch=True).replace(ahead=())
    text = emit(spec)
    load = text[text.index("DEVICE void load(") : text.index("DEVICE void math(")]
    assert "::load(" not in load.split("ptx::wait_for_prerequisites();")[0]
    math = text[text.index("DEVICE void math(") :]
    assert math.index("wait_for_prerequisites") < math.index("lane_scales(")
