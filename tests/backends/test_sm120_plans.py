"""What lowering for sm120 refuses, by its sentence, and what it decides when it is left to itself."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import emit, lower
from gemmgen.backends.limits import LIMITS, shared_limit
from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, e4m3_gemm_nt, scaled_gemm_nt
from gemmgen.ir import (
    Arch,
    BlockScale,
    Cluster,
    CutRemainder,
    DType,
    FetchTiles,
    KernelSpec,
    LaunchControl,
    MmaSyncPlan,
    Operand,
    Ring,
    Role,
    SplitK,
    Store,
    Tile,
    TmemStore,
    Wgmma,
)
from gemmgen.runtime.compiler import cached_ptx

FINE, COARSE, NARROW = Factor(DType.E4M3, 32), Factor(DType.E4M3, 128), Factor(DType.E2M1, 32)
SQUARE = WarpShape(128, 128, k_bytes=64)
BF16 = bf16_gemm("nt", SQUARE)
FP8 = scaled_gemm_nt(COARSE, FINE, SQUARE)
MIXED = scaled_gemm_nt(FINE, NARROW, WarpShape(128, 128))
MXFP4 = scaled_gemm_nt(NARROW, NARROW, SQUARE)
NVFP4 = scaled_gemm_nt(Factor(DType.E2M1, 16), Factor(DType.E2M1, 16), SQUARE, scale=DType.UE4M3X4)
SWAP = bf16_gemm("nt", WarpShape(16, 128, warps=(8, 1), swap=True))
SHIPPED = [spec for spec in catalog.specs().values() if spec.arch == Arch.SM120]


def operand(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"operands": tuple(each.replace(**changes) if each.name == name else each for each in spec.operands)}


def role(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"roles": tuple(each.replace(**changes) if each.name == name else each for each in spec.roles)}


def body(spec: KernelSpec, **changes: Any) -> dict[str, Any]:
    return role(spec, "math", body=spec.math.body.replace(**changes))


def ring(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"rings": tuple(each.replace(**changes) if each.name == name else each for each in spec.rings)}


def launch_control() -> dict[str, Any]:
    fetch = Role(name="fetch", warps=4, registers=40, body=FetchTiles(fills=("tile",)))
    roles = (*role(BF16, "math", registers=192)["roles"], fetch)
    return {"schedule": LaunchControl(), "roles": roles, "rings": (*BF16.rings, Ring(name="tile", turns="launch"))}


def idle(spec: KernelSpec) -> dict[str, Any]:
    extra = Operand(name="e", dtype=DType.BF16, box=("m", "k"))
    return {"operands": (*spec.operands, extra), **ring(spec, "ab", holds=("a", "b", "e"))}


REFUSALS: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "cluster": (BF16, {"cluster": Cluster(m=2)}, "cluster 2x1 has 2 CTAs; at most 1 here"),
    "cut remainder": (BF16, {"schedule": CutRemainder(parts=2)}, "schedule cut_remainder, which sm120 does not have"),
    "launch control": (BF16, launch_control(), "schedule launch_control, which sm120 does not have; use Persistent"),
    "a role of another architecture": (
        BF16,
        {"roles": (*BF16.roles, Role(name="extra", warps=4, registers=24, body=TmemStore(drains=("ab",))))},
        "role 'extra' has body tmem_store, which sm120 does not have; remove it, or set arch to sm100",
    ),
    "factors the other way round": (
        BF16,
        body(BF16, a="b", b="a"),
        "operands 'b' and 'a' have boxes ('n', 'k') and ('m', 'k'); need m by k and n by k",
    ),
    "half a factor": (BF16, operand(BF16, "a", box=("m/2", "k")), "'b' have boxes ('m/2', 'k') and ('n', 'k'); need m"),
    "multiplier": (
        BF16,
        role(BF16, "math", body=Wgmma(drains=("ab",))),
        "role 'math' has body wgmma; sm120 multiplies with MmaSync",
    ),
    "registers of the SM": (
        BF16,
        role(BF16, "load", registers=64),
        "roles need 67584 registers of 64512, as a launch gives 168",
    ),
    "registers of a thread": (
        BF16,
        {"tile": Tile(m=256, n=256, k=32)},
        "tile 256x256 on 4x2 warps needs 344 registers a thread, 256 of them sums, and 232 are left",
    ),
    "registers of two CTAs": (
        BF16,
        {
            "tile": Tile(m=256, n=128, k=32),
            "ctas_per_sm": 2,
            "roles": tuple(each.replace(registers=None, warps=8 if each.name == "math" else 4) for each in BF16.roles),
        },
        "needs 200 registers a thread, 128 of them sums, and 80 are left",
    ),
    "shared memory": (
        BF16,
        ring(BF16, "ab", slots=6),
        "ring 'ab' with 6 slots needs 114784 B of shared memory, sm120 has 101376; lower slots or the tile",
    ),
    "two slots": (
        MIXED,
        {"tile": Tile(m=256, n=128, k=128)},
        "a pipeline needs 2 slots, so use a smaller tile",
    ),
    "two CTAs": (
        bf16_gemm("nt", WarpShape(64, 64, warps=(2, 2), k_bytes=64, ctas_per_sm=2, slots=6)),
        {},
        "ring 'ab' with 6 slots needs 53344 B of shared memory, sm120 has 50176 for each of 2 CTAs",
    ),
    "grid": (BF16, body(BF16, warp_rows=3), "role 'math' has 8 warps, no multiple of warp_rows=3"),
    "rows": (
        BF16,
        {"tile": Tile(m=96, n=128, k=32)},
        "tile.m is 96: 4 warps along the rows of the product need a multiple of 64",
    ),
    "columns": (
        BF16,
        {"tile": Tile(m=128, n=48, k=32)},
        "tile.n is 48: 2 warps along the columns of the product need a multiple of 32",
    ),
    "swapped rows": (
        SWAP,
        {"tile": Tile(m=16, n=64, k=64)},
        "tile.n is 64: 8 warps along the rows of the product need",
    ),
    "row bytes": (
        BF16,
        {"tile": Tile(m=128, n=128, k=16)},
        "tile.k is 16 = 32 B of bf16 in shared memory; a row must be 64 or 128 B",
    ),
    "row bytes of spread elements": (
        MIXED,
        {"tile": Tile(m=128, n=128, k=64)},
        "a row must be 128 B where 4-bit elements take a byte",
    ),
    "box": (
        SWAP,
        {"tile": Tile(m=512, n=32, k=64), **body(SWAP, warp_rows=1)},
        "512 rows of a box, TMA copies at most 256; use a smaller tile",
    ),
    "swizzle": (
        BF16,
        {"tile": Tile(m=128, n=8, k=32), **body(BF16, warp_rows=8)},
        "tile.n is 8: 1 warps along the columns",
    ),
    "types": (BF16, operand(BF16, "b", dtype=DType.E4M3), "no mma.sync takes bf16 by e4m3 with no scales"),
    "plain 4-bit": (
        e4m3_gemm_nt(SQUARE),
        {**operand(e4m3_gemm_nt(SQUARE), "b", dtype=DType.E2M1)},
        "no mma.sync takes e4m3 by e2m1 with no scales",
    ),
    "scaled bf16": (
        FP8,
        {"operands": tuple(each.replace(dtype=DType.BF16) if each.name in "ab" else each for each in FP8.operands)},
        "no mma.sync takes bf16 by bf16 with ue8m0x4 scales",
    ),
    "8-bit numbers with UE4M3 scales": (
        FP8,
        {
            "operands": tuple(
                each.replace(dtype=DType.UE4M3X4) if each.name.startswith("sf") else each for each in FP8.operands
            )
        },
        "no mma.sync takes e4m3 by e4m3 with ue4m3x4 scales",
    ),
    "packed mix": (MIXED, body(MIXED, packed=True), "no mma.sync takes packed e4m3 by e2m1 with ue8m0x4 scales"),
    "4-bit with two kinds of scales": (
        MXFP4,
        operand(MXFP4, "sfb", dtype=DType.UE4M3X4),
        "no mma.sync takes packed e2m1 by e2m1 with ue4m3x4 and ue8m0x4 scales",
    ),
    **{
        f"packed 4-bit with {dtype} scales": (
            MXFP4,
            {"operands": tuple(x.replace(dtype=dtype) if x.name.startswith("sf") else x for x in MXFP4.operands)},
            f"no mma.sync takes packed e2m1 by e2m1 with {dtype} scales",
        )
        for dtype in (DType.F32, DType.BF16, DType.E4M3, DType.UE8M0)
    },
    "n-contiguous 8-bit": (
        FP8,
        operand(FP8, "b", major="n"),
        "operand 'b' is n-contiguous; mma.sync reads e4m3 k-contiguous, so lay it out anew",
    ),
    "m-contiguous 4-bit": (MXFP4, operand(MXFP4, "a", major="m"), "operand 'a' is m-contiguous; mma.sync reads e2m1"),
    "span of atoms": (
        bf16_gemm("nn", WarpShape(128, 192, k_bytes=64)),
        {},
        "operand 'b' is n-contiguous and a warp has 96 of n; that must divide 64 or be a multiple of it",
    ),
    "granularity": (
        FP8,
        operand(FP8, "sfb", box=("n", "k/256")),
        "scales 'sfb' have box ('n', 'k/256'); mxf8f6f4 takes words along k/128 or k/512",
    ),
    "granularity of nvfp4": (
        NVFP4,
        operand(NVFP4, "sfa", box=("m", "k/128")),
        "scales 'sfa' have box ('m', 'k/128'); mxf4nvf4_4x takes words along k/64",
    ),
    "k-contiguous scales": (FP8, operand(FP8, "sfa", major="k"), "scales 'sfa' are k-contiguous; words come by TMA"),
    "scales of the other factor": (
        FP8,
        body(FP8, scales=BlockScale(a="sfb", b="sfa")),
        "scales 'sfa' have box ('m', 'k/512'); they need one word a row: ('n', ...)",
    ),
    "ring that turns late": (
        FP8,
        ring(FP8, "ab", every=8),
        "ring 'ab' turns every 8 K blocks; data on sm120 turns every",
    ),
    "nobody reads": (BF16, idle(BF16), "copies operand 'e', which no role multiplies or scales by"),
    "staged swap": (
        SWAP,
        {
            "epilogue": (*SWAP.epilogue[:-1], Store(to="d", through="cd")),
            "rings": (*SWAP.rings, Ring(name="cd", holds=("d",), turns="store")),
        },
        "output 'd' of a swapped product is stored from registers; leave out `through`",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_names_value_rule_and_way_out(case: str) -> None:
    spec, changes, sentence = REFUSALS[case]
    with pytest.raises(ValueError) as error:
        lower(spec.replace(**changes))
    assert sentence in str(error.value), str(error.value)


def test_the_limits_are_those_of_the_chip() -> None:
    """99 KB a CTA, 100 KB an SM of which the system keeps 1 for each CTA; no clusters."""
    assert LIMITS[Arch.SM120].shared_per_cta == 99 * 1024 == shared_limit(Arch.SM120, 1)
    assert shared_limit(Arch.SM120, 2) == 49 * 1024
    assert LIMITS[Arch.SM120].cluster_size == 1


@pytest.mark.parametrize("spec", SHIPPED, ids=lambda spec: spec.name)
def test_every_shipped_plan_keeps_within_99_kb_and_the_registers_of_an_sm(spec: KernelSpec) -> None:
    plan = lower(spec)
    assert plan.shared_bytes <= shared_limit(Arch.SM120, spec.ctas_per_sm) and plan.mainloop.slots >= 2
    budget = sum((each.registers or 0) * each.warps * 32 for each in plan.roles)
    assert budget <= 65536 and plan.threads * spec.ctas_per_sm <= 1536


@pytest.mark.parametrize("spec", SHIPPED, ids=lambda spec: spec.name)
def test_warps_share_the_tile_out_and_a_slot_holds_whole_steps(spec: KernelSpec) -> None:
    plan = lower(spec)
    mma = plan.mma
    assert isinstance(mma, MmaSyncPlan)
    extents = (mma.warp_rows * mma.row_blocks * 16, mma.warp_columns * mma.column_blocks * 8)
    assert sorted(extents) == sorted((plan.tile.m, plan.tile.n)) and mma.warps == plan.role("math").warps
    assert extents == ((plan.tile.n, plan.tile.m) if mma.row_axis == "n" else (plan.tile.m, plan.tile.n))
    assert mma.steps * mma.step_k == plan.tile.k
    for part in plan.mainloop.parts:
        assert part.offset % (1024 if part.copy_by == "tma" else 128) == 0
        assert part.bytes % (1024 if part.copy_by == "tma" else 128) == 0


def test_words_of_scales_come_with_the_first_block_that_they_serve() -> None:
    """A word of B's scales serves 2 K blocks of 64, one of A's 8: their bytes are not among those of every block."""
    plan = lower(FP8)
    assert [plan.mainloop.part(name).per for name in ("sfa", "sfb")] == [8, 2]
    assert plan.mainloop.tx_bytes == 2 * 128 * 64
    text = emit(FP8)
    assert "kb % 8 == 0 ? ab::SFA::BYTES : 0" in text and "kb % 2 == 0 ? ab::SFB::BYTES : 0" in text
    packed = lower(NVFP4)
    assert packed.mainloop.part("sfa").words == 2 and packed.mainloop.tx_bytes == 2 * 128 * 64 + 2 * 128 * 8


def test_bytes_of_spread_elements_are_counted_packed() -> None:
    plan = lower(MIXED)
    assert plan.mainloop.part("b").bytes == 128 * 128
    assert plan.mainloop.tx_bytes == 128 * 128 + 128 * 64 + 2 * 128 * 4


@pytest.mark.parametrize(
    ("a", "b", "k_bytes", "unit"),
    [(COARSE, COARSE, 64, 8), (COARSE, FINE, 64, 8), (FINE, COARSE, 128, 4), (FINE, FINE, 64, 2), (FINE, FINE, 128, 1)],
)
def test_a_split_starts_where_words_of_both_factors_start(a: Factor, b: Factor, k_bytes: int, unit: int) -> None:
    """Trap 39: a share of K blocks that begins inside a word would read one that was never copied."""
    spec = scaled_gemm_nt(a, b, WarpShape(64, 64, warps=(2, 4), k_bytes=k_bytes, splits=2))
    assert f"gemmgen::SplitK<TILE_M, TILE_N, 8, 2, {unit}>" in emit(spec)


def test_a_workspace_is_asked_for_only_by_splits() -> None:
    split = lower(BF16.replace(schedule=SplitK(splits=4)))
    assert [param.name for param in split.params if param.kind == "workspace"] == ["partials", "arrivals"]
    assert split.splits == 4 and lower(BF16).splits == 1
    assert not [param for param in lower(BF16).params if param.kind == "workspace"]


@pytest.mark.parametrize("spec", SHIPPED, ids=lambda spec: spec.name)
def test_text_needs_no_instruction_of_other_architectures(spec: KernelSpec) -> None:
    text = emit(spec)
    assert '#include "gemmgen/sm120.cuh"' in text
    assert not any(word in text for word in ("tcgen05", "wgmma", "cluster_rank", "multicast"))


def test_sums_of_splits_are_ordered_by_barriers_and_an_atomic() -> None:
    """All lanes store, bar.warp.sync, lane 0 counts, bar.warp.sync, all load: the simulator keeps no such order."""
    spec = bf16_gemm("nt", WarpShape(16, 16, warps=(1, 1), slots=2, splits=2))
    text = cached_ptx(emit(spec), "sm120", "k.cu").text
    count = text.index("atom.acq_rel.gpu.global.inc.u32")
    stored, loaded = text.rindex("st.global.v4.f32", 0, count), text.index("ld.global.v4.f32", count)
    shared = text.index("shfl.sync.idx", count)
    assert "bar.warp.sync" in text[stored:count] and "bar.warp.sync" in text[shared:loaded]
    assert text.count("atom.") == 1 and "ld.global.nc" not in text
