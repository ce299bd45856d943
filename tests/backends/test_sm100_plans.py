"""What lowering for sm100 refuses, by its sentence, and what it decides when it is left to itself."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen.backends import lower
from gemmgen.catalog.dense_sm100 import Factor, PairShape, bf16_gemm, scaled_gemm_nt, tf32_gemm_nt
from gemmgen.ir import BlockScale, Cluster, CutRemainder, DType, KernelSpec, Operand, Ring, Role, Tile, Wgmma

FINE, COARSE, NARROW = Factor(DType.E4M3, 32), Factor(DType.E4M3, 128), Factor(DType.E2M1, 32)
BF16 = bf16_gemm("nt", PairShape(128))
TF32 = tf32_gemm_nt(PairShape(64))
FP8 = scaled_gemm_nt(COARSE, FINE, PairShape(128))
MIXED = scaled_gemm_nt(FINE, NARROW, PairShape(96))
PAIR = scaled_gemm_nt(COARSE, FINE, PairShape(128, 2))
SWAP = bf16_gemm("nt", PairShape(64, swap=True))
NVFP4 = scaled_gemm_nt(Factor(DType.E2M1, 16), Factor(DType.E2M1, 16), PairShape(64), scale=DType.UE4M3X4)


def operand(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"operands": tuple(each.replace(**changes) if each.name == name else each for each in spec.operands)}


def role(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"roles": tuple(each.replace(**changes) if each.name == name else each for each in spec.roles)}


def body(spec: KernelSpec, **changes: Any) -> dict[str, Any]:
    return role(spec, "mma", body=spec.math.body.replace(**changes))


def ring(spec: KernelSpec, name: str, **changes: Any) -> dict[str, Any]:
    return {"rings": tuple(each.replace(**changes) if each.name == name else each for each in spec.rings)}


def holding(spec: KernelSpec, **held: tuple[str, ...]) -> dict[str, Any]:
    """Rings that hold something else."""
    return {"rings": tuple(each.replace(holds=held.get(each.name, each.holds)) for each in spec.rings)}


def idle(spec: KernelSpec) -> dict[str, Any]:
    extra = Operand(name="e", dtype=DType.BF16, box=("m", "k"))
    return {"operands": (*spec.operands, extra), **ring(spec, "ab", holds=("a", "b", "e"))}


def without_role(spec: KernelSpec, name: str) -> dict[str, Any]:
    return {"roles": tuple(each for each in spec.roles if each.name != name)}


def by_wgmma(spec: KernelSpec) -> dict[str, Any]:
    """Multiplied by a warpgroup into registers, with the ring of accumulators left to another role."""
    drained = tuple(each for each in spec.roles if each.name != "mma")
    filler = Role(name="mma", warps=4, body=Wgmma(drains=("ab",)))
    rings = tuple(each for each in spec.rings if each.name != "acc")
    store = next(each for each in drained if each.name == "store")
    rest = tuple(each for each in drained if each.name != "store")
    return {"rings": rings, "roles": (store.replace(body=store.body.replace(drains=("ab",))), *rest, filler)}


REFUSALS: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "cluster size": (BF16, {"cluster": Cluster(m=2, n=2)}, "cluster 2x2 has 4 CTAs; at most 2 here"),
    "cut remainder": (BF16, {"schedule": CutRemainder(parts=2)}, "schedule cut_remainder, which sm100 does not have"),
    "a second role with the same body": (
        FP8,
        {"roles": (*FP8.roles, FP8.roles[-1].replace(name="again"))},
        "role 'again' has body transpose_scales, as role 'scales' has; sm100 lowers one, so remove either",
    ),
    "factors the other way round": (
        BF16,
        body(BF16, a="b", b="a"),
        "operands 'b' and 'a' have boxes ('n', 'k') and ('m', 'k'); need m by k and n by k",
    ),
    "half a factor": (BF16, operand(BF16, "a", box=("m/2", "k")), "'b' have boxes ('m/2', 'k') and ('n', 'k'); need m"),
    "factors in rings of their own": (
        BF16,
        {
            "rings": (*ring(BF16, "ab", holds=("a",))["rings"], Ring(name="bs", holds=("b",))),
            "roles": tuple(
                (
                    each.replace(body=each.body.replace(**{field: ("ab", "bs")}))
                    if (field := {"load": "fills", "mma": "drains"}.get(each.name))
                    else each
                )
                for each in BF16.roles
            ),
        },
        "rings 'ab' and 'bs' hold 'a' and 'b' apart; sm100 loads both through one ring, so let it hold both",
    ),
    "registers": (
        BF16,
        {"roles": tuple(each.replace(warps=4, registers=64) for each in BF16.roles)},
        "role 'store' asks for 64 registers, which roles of sm100 do not exchange; leave them out",
    ),
    "multiplier": (BF16, by_wgmma(BF16), "role 'mma' has body wgmma; sm100 multiplies with Tcgen05"),
    "storing warps": (
        BF16,
        role(BF16, "store", warps=8),
        "needs one role with body TmemStore and 4 warps: each reaches 32 lanes of tensor memory",
    ),
    "many warps": (
        BF16,
        role(BF16, "mma", warps=16),
        "which takes 88 registers, and a launch of 672 gives 80 to each; use fewer warps",
    ),
    "storing warpgroup": (
        BF16,
        {"roles": (BF16.roles[1], BF16.roles[0], *BF16.roles[2:])},
        "role 'store' has warps 1..4; tmem_store needs whole warpgroups",
    ),
    "transposing role": (
        FP8,
        without_role(FP8, "scales"),
        "rings ['ab', 'sf'] hold block scales, but TransposeScales hands on []",
    ),
    "CTAs an SM": (BF16, {"ctas_per_sm": 2}, "asks for 2 CTAs an SM; its tensor memory allows 1"),
    "cluster of one": (
        BF16,
        {"cluster": Cluster(m=2)},
        "multiplies for 1 CTAs along m, but the cluster is 2x1; make it 1x1",
    ),
    "cluster of a pair": (
        PAIR,
        {"cluster": Cluster(n=2)},
        "multiplies for 2 CTAs along m, but the cluster is 1x2; make it 2x1",
    ),
    "cluster of a swapped pair": (
        bf16_gemm("nt", PairShape(64, 2, swap=True)),
        {"cluster": Cluster(m=2)},
        "multiplies for 2 CTAs along n, but the cluster is 2x1; make it 1x2",
    ),
    "types": (
        BF16,
        operand(BF16, "a", dtype=DType.E4M3),
        "no tcgen05 product takes e4m3 by bf16 with no scales; bf16 and f32 take none",
    ),
    "8 bits without scales": (
        BF16,
        {"operands": tuple(each.replace(dtype=DType.E4M3) if each.name in "ab" else each for each in BF16.operands)},
        "no tcgen05 product takes e4m3 by e4m3 with no scales",
    ),
    "bf16 with scales": (
        FP8,
        operand(FP8, "a", dtype=DType.BF16),
        "no tcgen05 product takes bf16 by e4m3 with ue8m0x4 scales",
    ),
    "packed 8 bits": (
        FP8,
        body(FP8, packed=True),
        "no tcgen05 product takes packed e4m3 by e4m3 with ue8m0x4 scales",
    ),
    "scales of two kinds": (
        NVFP4,
        operand(NVFP4, "sfa", dtype=DType.UE8M0X4),
        "no tcgen05 product takes packed e2m1 by e2m1 with ue4m3x4 and ue8m0x4 scales",
    ),
    "scales of 4-bit numbers for 8-bit ones": (
        FP8,
        {
            "operands": tuple(
                each.replace(dtype=DType.UE4M3X4) if each.name in ("sfa", "sfb") else each for each in FP8.operands
            )
        },
        "no tcgen05 product takes e4m3 by e4m3 with ue4m3x4 scales",
    ),
    "rows": (
        BF16,
        {"tile": Tile(m=64, n=128, k=64)},
        "tile.m is 64; a CTA's rows fill the 128 lanes of tensor memory, so use 128",
    ),
    "swapped rows": (
        SWAP,
        {"tile": Tile(m=64, n=64, k=64)},
        "tile.n is 64; a CTA's rows fill the 128 lanes of tensor memory, so use 128",
    ),
    "columns": (
        BF16,
        {"tile": Tile(m=128, n=24, k=64)},
        "tile.n is 24; with 1 CTAs it must be a multiple of 16, at most 256",
    ),
    "columns of a pair": (
        PAIR,
        {"tile": Tile(m=128, n=48, k=128)},
        "tile.n is 48; with 2 CTAs it must be a multiple of 32, at most 256",
    ),
    "too many swapped columns": (
        SWAP,
        {"tile": Tile(m=272, n=128, k=64)},
        "tile.m is 272; with 1 CTAs it must be a multiple of 16, at most 256",
    ),
    "swapped columns": (
        SWAP,
        {"tile": Tile(m=24, n=128, k=64)},
        "tile.m is 24; with 1 CTAs it must be a multiple of 16, at most 256",
    ),
    "tile.k": (
        BF16,
        {"tile": Tile(m=128, n=128, k=32)},
        "tile.k is 32 = 64 B of bf16 in shared memory; a row must be 128 B",
    ),
    "4-bit majorness": (
        MIXED,
        operand(MIXED, "b", major="n"),
        "operand 'b' is n-contiguous; 4-bit operands need k contiguous",
    ),
    "tf32 majorness": (
        TF32,
        operand(TF32, "a", major="m"),
        "operand 'a' is m-contiguous; tf32 operands need k contiguous here",
    ),
    "atoms of the tile": (
        bf16_gemm("nn", PairShape(128)),
        {"tile": Tile(m=128, n=96, k=64)},
        "operand 'b' is n-contiguous: 96 elements of n a CTA are no multiple of the 64 in 128 bytes; change the tile",
    ),
    "scale block": (
        FP8,
        operand(FP8, "sfa", box=("m", "k/256")),
        "scales 'sfa' have box ('m', 'k/256'); mxf8f6f4 takes words along k/128 or k/512",
    ),
    "scale block of NVFP4": (
        NVFP4,
        operand(NVFP4, "sfb", box=("n", "k/128")),
        "scales 'sfb' have box ('n', 'k/128'); mxf4nvf4 takes words along k/64",
    ),
    "scale majorness": (
        FP8,
        operand(FP8, "sfb", major="k"),
        "scales 'sfb' are k-contiguous; words come by TMA with m or n contiguous",
    ),
    "scale rows": (
        FP8,
        operand(FP8, "sfb", box=("n/128", "k/128"), major="n"),
        "scales 'sfb' have box ('n/128', 'k/128'); they need one word a row: ('n', ...)",
    ),
    "coarse scales among data": (
        FP8,
        holding(FP8, ab=("a", "b", "sfa"), sf=("sfb",)),
        "ring 'ab': a slot of {'a': 1, 'b': 1, 'sfa': 4} serves so many K blocks each; what turns over apart needs its "
        "own ring",
    ),
    "scale ring": (
        FP8,
        ring(FP8, "sf", every=1),
        "ring 'sf' turns every 1 K blocks; its scales serve 4, so set every=4",
    ),
    "idle operand": (BF16, idle(BF16), "copies operand 'e', which no role multiplies or scales by"),
    "accumulator slots": (
        FP8,
        {"tile": Tile(m=128, n=256, k=128), **ring(FP8, "acc", slots=2)},
        "ring 'acc' with 2 slots of 256 columns needs 512 of tensor memory, 500 are left beside the scales; use 1 slot",
    ),
    "shared memory": (BF16, ring(BF16, "ab", slots=8), "ring 'ab' with 8 slots needs"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_does_not_fit_is_refused(what: str) -> None:
    spec, changes, sentence = REFUSALS[what]
    lower(spec)
    with pytest.raises(ValueError) as raised:
        lower(spec.replace(**changes))
    assert sentence in str(raised.value)


def test_left_to_itself_the_operand_ring_is_as_deep_as_fits() -> None:
    for spec in (BF16, TF32, FP8, PAIR, NVFP4, SWAP):
        depth = lower(spec).ring("ab").slots
        assert lower(spec.replace(**ring(spec, "ab", slots=depth))).ring("ab") == lower(spec).ring("ab")
        if depth < 32:
            with pytest.raises(ValueError, match=f"with {depth + 1} slots needs"):
                lower(spec.replace(**ring(spec, "ab", slots=depth + 1)))


def test_one_accumulator_may_be_asked_for() -> None:
    spec = bf16_gemm("nt", PairShape(128, acc_slots=1))
    assert lower(spec).ring("acc").slots == 1 and lower(BF16).ring("acc").slots == 2


def test_names_do_not_matter_to_scales() -> None:
    """Nothing looks for sfa and sfb by their names."""
    renamed = {"sfa": "x", "sfb": "y"}
    operands = tuple(each.replace(name=renamed.get(each.name, each.name)) for each in FP8.operands)
    rings = tuple(
        Ring(**{**each.model_dump(), "holds": tuple(renamed.get(name, name) for name in each.holds)})
        for each in FP8.rings
    )
    changes = body(FP8, scales=BlockScale(a="x", b="y"))
    plan = lower(FP8.replace(operands=operands, rings=rings, **changes))
    assert plan.ring("sf").parts[0].column == lower(FP8).ring("sf").parts[0].column
