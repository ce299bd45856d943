"""Prologues and splits that the launch decides on: what lowering refuses, how many splits, what a launch needs."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import emit, lower
from gemmgen.catalog import PrenormShape, tf32_hc_prenorm_gemm
from gemmgen.ir import Arch, Cluster, DType, KernelSpec, Operand, Reduce, Ring, SplitK, Store
from gemmgen.runtime.arguments import grid_size, with_splits, workspace_bytes
from gemmgen.runtime.nvrtc import compile_cubin

WHOLE = tf32_hc_prenorm_gemm(PrenormShape(64, 24))
WARPS = tf32_hc_prenorm_gemm(PrenormShape(64, 24), arch=Arch.SM120)
LANES = tf32_hc_prenorm_gemm(PrenormShape(128, 32), arch=Arch.SM100)
SLICES = tf32_hc_prenorm_gemm(PrenormShape(64, 24), slices=True)


def operand(spec: KernelSpec, name: str, **changes: Any) -> tuple[Operand, ...]:
    return tuple(each.replace(**changes) if each.name == name else each for each in spec.operands)


def role(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"roles": tuple(each.replace(**changes) if each.name == name else each for each in spec.roles)}


def math(spec: KernelSpec, **changes: Any) -> dict[str, Any]:
    return {"roles": (spec.math.replace(body=spec.math.body.replace(**changes)), spec.load)}


def share_k(spec: KernelSpec) -> dict[str, Any]:
    return role(spec, "math", body=spec.math.body.replace(share_k=True))


REFUSALS: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "B along n": (WHOLE, {"operands": operand(WHOLE, "b", major="n")}, "wgmma reads tf32 k-contiguous"),
    "width": (
        tf32_hc_prenorm_gemm(PrenormShape(64, 128)),
        {},
        "width is 128; products of a cast A are at most 64 wide",
    ),
    "unroll": (
        WHOLE,
        math(WHOLE, unroll=3),
        "the loop that casts A has a set of registers for each copy of its body, at most 2",
    ),
    "one slot": (tf32_hc_prenorm_gemm(PrenormShape(64, 24, slots=1)), {}, "ring 'ab' has 1 slot; the next one is read"),
    "cluster": (WHOLE, {"cluster": Cluster(m=2)}, "has splits of k and a cluster; CTAs that share a tile are in none"),
    "a number of splits": (WHOLE, {"schedule": SplitK(splits=4)}, "splits k in 4; on sm90 the launch decides, use"),
    "registers": (
        tf32_hc_prenorm_gemm(PrenormShape(128, 24, k=128)),
        {},
        "tile 128x24 on 1 warpgroups needs 312 accumulator registers a thread",
    ),
    "K shared by one warpgroup": (
        WHOLE,
        math(WHOLE, share_k=True),
        "has share_k and 1 warpgroups; 2 of them share a slot",
    ),
    "K shared without a prologue": (
        catalog.bf16_gemm("nt", catalog.Shape(128, 32)),
        share_k(catalog.bf16_gemm("nt", catalog.Shape(128, 32))),
        "role 'math' has share_k, but no prologue casts A",
    ),
    "wgmma on sm100": (WHOLE, {"arch": Arch.SM100}, "role 'math' has body wgmma; sm100 multiplies with Tcgen05"),
    "warps on sm100": (LANES, role(LANES, "cast", warps=8), "role 'cast' has 8 warps; 4 reach all of A's rows"),
    "columns on sm100": (
        tf32_hc_prenorm_gemm(PrenormShape(128, 48), arch=Arch.SM100),
        {},
        "tile is 128x48x64; where A is cast, n must be one of (16, 32, 64, 128) and k 64",
    ),
    "K block on sm100": (
        tf32_hc_prenorm_gemm(PrenormShape(128, 32, k=32), arch=Arch.SM100),
        {},
        "tile is 128x32x32; where A is cast, n must be one of",
    ),
    "a number of splits on sm100": (
        LANES,
        {"schedule": SplitK(splits=4)},
        "splits k; sm100 does where a prologue casts A and the launch says how often (SplitK(splits=None))",
    ),
    "cast slots on sm100": (
        LANES,
        {"rings": tuple(each.replace(slots=8) if each.name == "wide" else each for each in LANES.rings)},
        "ring 'wide' with 8 slots of 64 columns needs 512 of tensor memory, 384 are left beside the accumulators",
    ),
    "a staged store on sm100": (
        LANES,
        {
            "rings": (*LANES.rings, Ring(name="cd", holds=("d",), turns="store")),
            "epilogue": (Store(to="d", through="cd"),),
        },
        "epilogue[0]: where A is cast, sm100 stores from registers; leave out through='cd'",
    ),
    "a reduction on sm100": (
        LANES,
        {
            "operands": (*LANES.operands, Operand(name="most", dtype=DType.F32, box=("m",))),
            "epilogue": (Reduce(function="amax", along="n", to="most"), Store(to="d")),
        },
        "epilogue[0]: reduce behind a prologue, which sm100 is not lowered with; sm90 and sm120 are",
    ),
    "K block on sm120": (
        tf32_hc_prenorm_gemm(PrenormShape(64, 24, k=32), arch=Arch.SM120),
        {},
        "tile.k is 32 = 64 B of bf16; rows of a factor that is cast are 128 B",
    ),
    "B along n on sm120": (
        WARPS,
        {"operands": operand(WARPS, "b", major="n")},
        "operand 'b' is n-contiguous; mma.sync reads f32 k-contiguous",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_refused(case: str) -> None:
    spec, changes, sentence = REFUSALS[case]
    with pytest.raises(ValueError) as raised:
        lower(spec.replace(**changes))
    assert sentence in str(raised.value)


def test_sm100_splits_nothing_else() -> None:
    spec = catalog.bf16_gemm_sm100("nt", catalog.PairShape(64)).replace(schedule=SplitK(splits=2))
    with pytest.raises(ValueError, match="splits k; sm100 does where a prologue casts A"):
        lower(spec)


@pytest.mark.parametrize(
    ("m", "k", "splits"),
    [(1, 64, 1), (13, 7168, 28), (13, 28672, 32), (137, 28672, 32), (4096, 7168, 2), (8192, 7168, 1)],
)
def test_splits_fill_the_gpu_with_shares_worth_a_cta(m: int, k: int, splits: int) -> None:
    plan, sizes = lower(WHOLE), {"m": m, "n": 24, "k": k}
    found = with_splits(plan, sizes, 132)
    tiles = -(-m // 64)
    assert found["s"] == splits and grid_size(plan, found, 132) == min(132, tiles * splits)
    sums = tiles * splits * 4 * 32 * (12 + 4) * 4
    assert workspace_bytes(plan, found, 1) == ({} if splits == 1 else {"partials": sums, "arrivals": tiles * 16})


def test_slices_need_no_workspace_and_are_as_many_as_outputs_have() -> None:
    plan, sizes = lower(SLICES), {"m": 137, "n": 24, "k": 640, "s": 16}
    assert with_splits(plan, sizes, 132) == sizes
    assert workspace_bytes(plan, sizes, 1) == {} and grid_size(plan, sizes, 132) == 48
    assert [param.name for param in plan.params if param.kind == "stride"] == ["d_stride", "d_slice", "sqr_sum_slice"]
    assert plan.outputs == ("d", "sqr_sum")


def test_b_is_rounded_to_tf32_by_the_copy_engine() -> None:
    elements = {each.operand: (each.element, each.smem_swizzle) for each in lower(WHOLE).tensor_maps}
    assert elements == {"a": ("bf16", 128), "b": ("tf32", 128)}
    assert lower(WHOLE).mma.instruction == "wgmma_m64n24k8_f32_tf32_tf32"
    assert WHOLE.operand("b").dtype == DType.F32


def test_a_row_of_a_lies_in_tensor_memory_and_its_squares_behind_the_sums() -> None:
    plan = lower(LANES)
    rings = {ring.name: (ring.slots, ring.columns, ring.full_count, ring.empty_count) for ring in plan.rings}
    assert rings == {"ab": (9, 0, 1, 5), "acc": (2, 64, 5, 4), "wide": (4, 64, 4, 1)}
    assert plan.mma.instruction == "tcgen05_mma_cta1_tf32_m128n32k8_f32_f32" and plan.sums == 36
    assert {each.operand: each.element for each in plan.tensor_maps} == {"a": "bf16", "b": "tf32"}


@pytest.mark.parametrize(
    "name",
    [
        "sm90_tf32_hc_prenorm_gemm_64x32_x2",
        "sm90_tf32_hc_prenorm_gemm_64x32_k128_shared",
        "sm90_tf32_hc_prenorm_gemm_slices_64x32_k128_shared",
        "sm90_tf32_hc_prenorm_gemm_slices_128x32_x2",
        "sm100_tf32_hc_prenorm_gemm_128x64",
        "sm100_tf32_hc_prenorm_gemm_128x128",
    ],
)
def test_registers_suffice_and_products_are_not_serialised(name: str) -> None:
    """With too few registers for fragments in flight, ptxas makes every wgmma wait and says so in its log."""
    spec = catalog.specs()[name]
    compiled = compile_cubin(emit(spec), spec.arch, name)
    assert compiled.resources[name].spill_store_bytes == 0 and compiled.resources[name].stack_bytes == 0
    assert "serialized" not in compiled.log
