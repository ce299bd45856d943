"""What lowering refuses, by the sentence that names the value, the limit and the change that helps."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.backends.limits import LIMITS, shared_limit
from gemmgen.catalog.grouped import in_k_groups, in_row_groups
from gemmgen.ir import (
    Arch,
    Cluster,
    CutRemainder,
    DType,
    FetchTiles,
    KernelSpec,
    LaunchControl,
    OneTile,
    Operand,
    Persistent,
    Ring,
    Role,
    Store,
    Tile,
    TmemStore,
    TransposeScales,
)

FP8 = catalog.fp8_gemm_nt(catalog.Shape(128, 128))
BF16 = catalog.bf16_gemm("nt", catalog.Shape(128, 128))
NN = catalog.bf16_gemm("nn", catalog.Shape(128, 128))
TN = catalog.bf16_gemm("tn", catalog.Shape(128, 128))
SWAPPED = catalog.bf16_gemm("nt", catalog.Shape(96, 128, swap=True))
SLICES = catalog.bf16_gemm("nt", catalog.Shape(64, 128, swap=True, splits=2))
LANES = catalog.fp8_gemm_nt(catalog.Shape(16, 128, swap=True, lanes=True))
PER_COLUMN = catalog.fp8_gemm_nt(catalog.Shape(128, 128), sfb_columns=1)
PUSHED = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1, splits=2))
SHARED = catalog.bf16_gemm("nt", catalog.Shape(128, 128, cluster=(1, 2)))
PRENORM = in_row_groups(
    catalog.tf32_hc_prenorm_gemm(catalog.PrenormShape(64, 24)).replace(schedule=Persistent()), "ends"
)
OF_K = in_k_groups(catalog.fp8_gemm_nt(catalog.Shape(128, 128), DType.F32, True, sfb_columns=1), "counts", 128, True)


STRIPS = catalog.fp8_gemm_nt(catalog.Shape(64, 64, groups=1, ctas_per_sm=2, strips=4))


def _moved(spec: KernelSpec, name: str) -> tuple[Ring, ...]:
    """An operand moves to the second ring, and what that held to the first."""
    first, second, *others = spec.rings
    kept = tuple(each for each in first.holds if each != name)
    return first.replace(holds=(*kept, *second.holds)), second.replace(holds=(name,)), *others


def operand(spec: KernelSpec, name: str, **changes: Any) -> tuple[Operand, ...]:
    return tuple(each.replace(**changes) if each.name == name else each for each in spec.operands)


def role(spec: KernelSpec, name: str, **changes: Any) -> tuple[Role, ...]:
    return tuple(each.replace(**changes) if each.name == name else each for each in spec.roles)


def math(spec: KernelSpec, **changes: Any) -> tuple[Role, ...]:
    return role(spec, "math", body=spec.math.body.replace(**changes))


def ring(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"rings": tuple(each.replace(**changes) if each.name == name else each for each in spec.rings)}


def parts(spec: KernelSpec, rows: int = 32) -> dict[str, Any]:
    """A's last tiles in boxes of so many rows."""
    return {"roles": role(spec, "load", body=spec.load.body.replace(part_rows=rows))}


FETCHED = {
    "schedule": LaunchControl(),
    "rings": (*BF16.rings, Ring(name="q", turns="launch")),
    "roles": (*BF16.roles, Role(name="fetch", warps=4, registers=24, body=FetchTiles(fills=("q",)))),
}


def with_role(spec: KernelSpec, body: Any) -> dict[str, Any]:
    """A role that has nothing to do with the others."""
    return {"roles": (*spec.roles, Role(name="extra", warps=4, registers=24, body=body))}


REFUSALS: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "groups behind a prologue": (PRENORM, {}, "has groups and a prologue; only products without one are grouped"),
    "parts of the whole": (FP8, parts(FP8, 128), "has part_rows=128: tile.m is 128, which is not several of those"),
    "parts of nothing whole": (FP8, parts(FP8, 48), "has part_rows=48: tile.m is 128, which is not several of those"),
    "parts of k": (TN, parts(TN), "has part_rows=32, but rows of boxes of 'a' are k; make it k-contiguous"),
    "parts that CTAs share": (SHARED, parts(SHARED), "has part_rows=32, but 2 CTAs share boxes of 'a'; set cluster.n"),
    "parts of groups of k": (
        OF_K,
        parts(OF_K),
        "has part_rows=32 and groups of k, in all of which A has the same rows",
    ),
    "swapped slices staged": (
        SLICES,
        {
            "rings": (*SLICES.rings, Ring(name="cd", slots=1, holds=("d",), turns="store")),
            "epilogue": (*SLICES.epilogue[:-1], Store(to="d", through="cd")),
        },
        "output 'd' of a swapped product is staged by warpgroups, but with schedule cluster_split_k each warp finishes",
    ),
    "swapped, scales by lanes": (
        LANES,
        {},
        "has swap_ab, but warps that walk tiles read 'sfb' by themselves; those of swapped products find scales in",
    ),
    "staged parts of nothing whole": (
        SWAPPED,
        {"roles": role(SWAPPED, "math", body=SWAPPED.math.body.replace(staged_rows=40))},
        "role 'math' has staged_rows=40: a product has 96, which is not several of those; use a divisor",
    ),
    "a schedule of another architecture": (
        BF16,
        FETCHED,
        "has schedule launch_control, which sm90 does not have; use Persistent, or set arch to sm100",
    ),
    "a role of another architecture": (
        BF16,
        with_role(BF16, TmemStore(drains=("ab",))),
        "role 'extra' has body tmem_store, which sm90 does not have; remove it, or set arch to sm100",
    ),
    "scales that nobody transposes here": (
        FP8,
        with_role(FP8, TransposeScales(hands_on=("ab",))),
        "role 'extra' has body transpose_scales, which sm90 does not have",
    ),
    "cluster": (FP8, {"cluster": Cluster(m=2, n=2)}, "cluster 2x2 has 4 CTAs; at most 2 here"),
    "warps": (
        FP8,
        {"roles": role(FP8, "math", warps=32)},
        "roles need 1152 threads, sm90 allows 1024; use fewer warps",
    ),
    "warpgroup": (
        FP8,
        {"roles": role(FP8, "load", warps=2, registers=None)},
        "role 'math' has warps 2..9; wgmma needs whole warpgroups",
    ),
    "some registers": (
        FP8,
        {"roles": role(FP8, "load", registers=None)},
        "either every role names registers or none does",
    ),
    "registers of a part": (
        FP8,
        {"roles": tuple(reversed(role(FP8, "load", warps=2)))},
        "role 'load' has 2 warps; setmaxnreg needs whole warpgroups of 4",
    ),
    "registers": (
        FP8,
        {"roles": role(FP8, "load", registers=48)},
        "roles need 65536 registers of 64512, as a launch gives 168 for each of 384 threads; lower a role's",
    ),
    "registers of two CTAs": (
        FP8,
        {"ctas_per_sm": 2},
        "roles need 64512 registers of 30720, as a launch gives 80 for each of 384 threads of 2 CTAs an SM",
    ),
    "registers of a role that grows little": (
        FP8,
        {"roles": (FP8.load.replace(registers=160), FP8.math.replace(registers=152))},
        "role 'load' shrinks to 160 registers, but role 'math' asks for 152 for each of 384 threads; lower it",
    ),
    "registers that a launch does not give": (
        FP8,
        {"roles": role(FP8, "load", registers=176)},
        "role 'load' shrinks to 176 registers, but a launch gives 168 for each of 384 threads; lower it",
    ),
    "uneven parts": (FP8, {"schedule": CutRemainder(parts=5)}, "tile.n is 128, no multiple of 40; change parts"),
    "parts of a cluster's tile": (
        FP8,
        {"schedule": CutRemainder(parts=2), "cluster": Cluster(m=2)},
        "has a cluster, whose CTAs share what they load",
    ),
    "parts of columns": (NN, {"schedule": CutRemainder(parts=2)}, "a part's rows of 'b' must lie together in a slot"),
    "overlap without promotion": (
        BF16,
        {"roles": math(BF16, overlap_epilogue=True)},
        "without promote its sums stay in the registers of products",
    ),
    "overlap without a next tile": (
        FP8,
        {"roles": math(FP8, overlap_epilogue=True), "schedule": OneTile()},
        "with schedule one_tile no CTA knows its next tile",
    ),
    "whole rounds without promotion": (
        BF16,
        {"roles": math(BF16, whole_rounds=True)},
        "which is lowered for products that are promoted and whose CTAs share no tile in a cluster",
    ),
    "whole rounds and copies": (
        FP8,
        {"roles": math(FP8, whole_rounds=True, unroll=2)},
        "a round has a copy for every slot; use unroll=1",
    ),
    "one product that takes turns": (
        FP8,
        {"roles": math(FP8, partials=2)},
        "has partials=2 and 1 products of 128 columns a K block, so in every other block they would change places",
    ),
    "partial sums of columns with a scale each": (
        PER_COLUMN,
        {"roles": math(PER_COLUMN, partials=2, width=64)},
        "a scale of B for each column is read as sums are scaled, behind which its slot would go back too late",
    ),
    "partial sums in a cluster": (
        PUSHED,
        {"roles": math(PUSHED, partials=2, width=16)},
        "a CTA of schedule cluster_split_k has few K blocks, so leave it out",
    ),
    "registers of partial sums": (
        FP8,
        {"roles": math(FP8, partials=2, width=72), "tile": Tile(m=256, n=144, k=128)},
        "tile 256x144 on 2 warpgroups needs 216 accumulator registers a thread, at most 208 are left",
    ),
    "factors that stay for several blocks": (
        FP8,
        ring(FP8, "ab", every=4),
        "ring 'ab' turns every 4 K blocks; what is multiplied turns every block",
    ),
    "a second ring of other scales": (
        STRIPS,
        {"rings": (*_moved(STRIPS, "sfa"),)},
        "a second ring may hold B's scales alone",
    ),
    "a second ring with one warp": (
        STRIPS,
        {"roles": role(STRIPS, "load", warps=1)},
        "has 1 of the 2 warps that this takes: one copies boxes, others scales",
    ),
    "a second ring that turns every block": (
        STRIPS,
        ring(STRIPS, "strips", every=1),
        "and a second ring is for scales of several, so set turns='k' and every=32",
    ),
    "strips of scales that TMA brings": (
        catalog.fp8_gemm_nt(catalog.Shape(64, 64, groups=1, strips=4), sfb_columns=1),
        {},
        "a scale of B for each column comes with the factors, so let their ring hold 'sfb'",
    ),
    "slots": (
        FP8,
        ring(FP8, "ab", slots=7),
        "ring 'ab' with 7 slots needs 265",
    ),
    "one slot without promotion": (
        BF16,
        ring(BF16, "ab", slots=1),
        "ring 'ab' has 1 slot; without promote a slot goes back behind the next one's products, so use 2",
    ),
    "no room beside another ring": (
        FP8,
        ring(FP8, "cd", slots=20),
        "ring 'cd' with 20 slots takes 327680 B of shared memory, and ring 'ab', which needs 2 slots, 66",
    ),
    "no room": (
        BF16,
        {"tile": Tile(m=128, n=256, k=512)},
        "a pipeline needs 2 slots, so use a smaller tile",
    ),
    "tile.m": (
        FP8,
        {"tile": Tile(m=64, n=128, k=128)},
        "tile.m is 64: 2 warpgroups of 64-row instructions need a multiple of 128",
    ),
    "width": (
        FP8,
        {"roles": math(FP8, width=96)},
        "tile.n is 128, not a multiple of the instruction's width 96; change width",
    ),
    "width of n-contiguous B": (
        NN,
        {"roles": math(NN, width=32)},
        "width 32 of a tile whose B is n-contiguous must be a multiple of 64",
    ),
    "boxes": (
        BF16,
        {"operands": operand(BF16, "a", box=("n", "k"))},
        "have boxes ('n', 'k') and ('n', 'k'); need m by k and n by k",
    ),
    "types": (
        BF16,
        {"operands": operand(BF16, "a", dtype=DType.E4M3)},
        "no wgmma multiplies e4m3 by bf16 here; use e4m3 by e4m3, bf16 by bf16, or bf16 by f32 with a prologue",
    ),
    "8-bit majorness": (
        FP8,
        {"operands": operand(FP8, "b", major="n")},
        "operand 'b' is n-contiguous; 8-bit wgmma needs k contiguous",
    ),
    "tile.k": (
        BF16,
        {"tile": Tile(m=128, n=128, k=48)},
        "tile.k is 48 = 96 B of bf16; it must be whole 128-byte atoms",
    ),
    "scale type": (
        FP8,
        {"operands": operand(FP8, "sfa", dtype=DType.BF16)},
        "scale operand 'sfa' is bf16; block scales on sm90 are f32",
    ),
    "scale block": (
        FP8,
        {"operands": operand(FP8, "sfb", box=("n/128", "k/64"))},
        "scale operand 'sfb' has box ('n/128', 'k/64'); promotion needs k/128",
    ),
    "A's scales": (
        FP8,
        {"operands": operand(FP8, "sfa", box=("m/128", "k/128"))},
        "A's scales need one per row",
    ),
    "B's scales": (
        FP8,
        {"operands": operand(FP8, "sfb", box=("k/128",), major=None)},
        "B's scales need an n axis, such as 'n/128'",
    ),
    "accumulators": (
        FP8,
        {"tile": Tile(m=256, n=256, k=128)},
        "tile 256x256 on 2 warpgroups needs 384 accumulator registers a thread, at most 208 are left",
    ),
    "accumulators of CTAs that share an SM": (
        catalog.fp8_gemm_nt(catalog.Shape(64, 64, groups=1, ctas_per_sm=2)),
        {"ctas_per_sm": 4},
        "at most 56 are left; use a smaller tile, width or more warps, or fewer CTAs than 4 an SM",
    ),
    "multicast rows": (
        catalog.bf16_gemm("nt", catalog.Shape(128, 24)),
        {"cluster": Cluster(m=2)},
        "operand 'b': 24 rows shared by 2 CTAs must be a multiple of 16",
    ),
    "ring of an idle operand": (
        BF16,
        {
            "operands": (*BF16.operands, Operand(name="e", dtype=DType.BF16, box=("m", "k"))),
            **ring(BF16, "ab", holds=("a", "b", "e")),
        },
        "copies operand 'e', which no role multiplies or scales by",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_does_not_fit_is_refused(what: str) -> None:
    spec, changes, sentence = REFUSALS[what]
    with pytest.raises(ValueError) as raised:
        lower(spec.replace(**changes))
    assert sentence in str(raised.value)


def test_two_ctas_share_the_memory_of_an_sm() -> None:
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 64, groups=1, ctas_per_sm=2))
    plan = lower(spec)
    assert plan.shared_bytes <= shared_limit(Arch.SM90, 2) < LIMITS[Arch.SM90].shared_per_cta // 2
    deeper = {"rings": (spec.rings[0].replace(slots=plan.ring("ab").slots + 1), *spec.rings[1:])}
    with pytest.raises(ValueError, match="for each of 2 CTAs; lower slots or the tile"):
        lower(spec.replace(**deeper))


def test_left_to_itself_a_ring_is_as_deep_as_fits() -> None:
    for spec in (FP8, BF16, NN):
        plan = lower(spec)
        depth = plan.ring("ab").slots
        assert lower(spec.replace(**ring(spec, "ab", slots=depth))).shared_bytes == plan.shared_bytes
        with pytest.raises(ValueError, match=f"ring 'ab' with {depth + 1} slots needs"):
            lower(spec.replace(**ring(spec, "ab", slots=depth + 1)))
