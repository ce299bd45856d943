"""Every rule a spec must keep, by the sentence that says which part breaks it and what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from gemmgen import catalog
from gemmgen.catalog import dense_sm100, dense_sm120
from gemmgen.ir import (
    Apply,
    Bias,
    BlockScale,
    Cast,
    Cluster,
    DType,
    Gate,
    HeadSplit,
    Keep,
    KernelSpec,
    OneTile,
    Operand,
    Persistent,
    Quantise,
    Reduce,
    Residual,
    Ring,
    Role,
    Scale,
    SplitK,
    Store,
    Tile,
    TmaLoad,
    Wgmma,
    split_axis,
)

SPEC = catalog.fp8_gemm_nt(catalog.Shape(128, 128))
LOAD, MATH = SPEC.load, SPEC.math
AB, CD = SPEC.rings
ALPHA = Operand(name="alpha", dtype=DType.F32, box=())
BIAS = Operand(name="bias", dtype=DType.BF16, box=("n",))
SCALES = Operand(name="d_sf", dtype=DType.UE8M0, box=("m", "n/32"))
MATRIX = Operand(name="c", dtype=DType.BF16, box=("m", "n"))


def operands(*extra: Operand, without: str = "", **changes: dict[str, Any]) -> tuple[Operand, ...]:
    kept = [each.replace(**changes.get(each.name, {})) for each in SPEC.operands if each.name != without]
    return (*kept, *extra)


def math(**changes: Any) -> Role:
    return MATH.replace(body=MATH.body.replace(**changes))


def quantised(scales: Operand, *extra: Operand, **changes: Any) -> dict[str, Any]:
    """An e4m3 output with these scales."""
    operands_ = operands(scales, *extra, d={"dtype": DType.E4M3})
    return {"operands": operands_, "epilogue": (Quantise(to="d", scales="d_sf"),), **changes}


SUMS = Reduce(function="sum", along="n", to="sums")


def reducing(along: str, **fields: Any) -> dict[str, Any]:
    """A sum to ``sums``, of which these fields are set."""
    sums = Operand(name="sums", **{"dtype": DType.F32, "box": ("m",), **fields})
    return {"operands": operands(sums), "epilogue": (SUMS.replace(along=along), CAST, STORE)}


STORE = SPEC.epilogue[-1]
CAST = Cast(to=DType.BF16)


def gated(*extra: Operand, before: tuple[Any, ...] = (), after: tuple[Any, ...] = (), **changes: Any) -> dict[str, Any]:
    """A gate with an output of half the columns, and steps around it."""
    operands_ = operands(*extra, d={"box": ("m", "n/2")})
    return {"operands": operands_, "epilogue": (*before, Gate(), *after, CAST, STORE), **changes}


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "operand twice": (
        {"operands": operands(SPEC.operands[0])},
        "operands define 'a' twice; rename one",
    ),
    "ring twice": ({"rings": (AB, CD, CD)}, "rings define 'cd' twice; rename one"),
    "role twice": (
        {"roles": (LOAD, MATH.replace(name="load"))},
        "roles define 'load' twice; rename one",
    ),
    "no loader": ({"roles": (MATH,)}, "has 0 roles with body TmaLoad"),
    "two mathematicians": (
        {"roles": (LOAD, MATH, MATH.replace(name="more"))},
        "has 2 roles with body Wgmma",
    ),
    "rings apart": (
        {"roles": (LOAD.replace(body=TmaLoad(fills=("cd",))), MATH)},
        "ring 'ab' is filled by no role and drained by ['math']; one role fills a ring and at least one drains it",
    ),
    "ring unknown": (
        {"roles": (LOAD.replace(body=TmaLoad(fills=("xy",))), math(drains=("xy",)))},
        "names ring 'xy', which it does not define; it defines 'ab', 'cd'",
    ),
    "ring lacks an operand": (
        {"rings": (AB.replace(holds=("a", "b", "sfa")), CD)},
        "role 'math' needs ['sfb'] from the rings it drains, which hold ['a', 'b', 'sfa']",
    ),
    "ring holds an unknown operand": (
        {"rings": (AB.replace(holds=(*AB.holds, "z")), CD)},
        "names operand 'z', which it does not define",
    ),
    "idle operand": ({"operands": operands(BIAS)}, "no ring holds and no step names operand 'bias'; remove or use it"),
    "no store": ({"epilogue": (CAST,)}, "the epilogue must end with a store; add Store(to=...)"),
    "empty epilogue": ({"epilogue": ()}, "the epilogue must end with a store; add Store(to=...)"),
    "step after a cast": (
        {"operands": operands(BIAS), "epilogue": (CAST, Bias(vector="bias"), STORE)},
        "epilogue[1]: bias comes after a cast; only a store may follow it",
    ),
    "store in the middle": (
        {"epilogue": (CAST, STORE, STORE)},
        "epilogue[1]: a store must be the last step; Keep(to=...) before the cast writes another output",
    ),
    "two stores to one output": (
        {"epilogue": (Keep(to="d"), CAST, STORE)},
        "epilogue[2]: 'd' is written twice; add an operand",
    ),
    "keeping what is read": (
        {"operands": operands(MATRIX), "epilogue": (Keep(to="c"), Residual(matrix="c"), CAST, STORE)},
        "epilogue[1]: residual reads 'c', which the chain writes; add an operand to read",
    ),
    "keeping after a cast": (
        {"operands": operands(MATRIX), "epilogue": (CAST, Keep(to="c"), STORE)},
        "epilogue[1]: keep comes after a cast; only a store may follow it",
    ),
    "keeping a vector": (
        {"operands": operands(BIAS), "epilogue": (Keep(to="bias"), CAST, STORE)},
        "epilogue[0]: keep to 'bias' needs box ('m', 'n') with n contiguous",
    ),
    "keeping columns": (
        {"operands": operands(MATRIX.replace(major="m")), "epilogue": (Keep(to="c"), CAST, STORE)},
        "epilogue[0]: keep to 'c' needs box ('m', 'n') with n contiguous",
    ),
    "heads of what is read": (
        {
            "operands": operands(MATRIX.replace(heads=HeadSplit(left=64, mid=64, right=64))),
            "epilogue": (Residual(matrix="c"), CAST, STORE),
        },
        "operand 'c' has heads, but only what Store writes moves; remove them",
    ),
    "keeping in 4 bits": (
        {"operands": operands(MATRIX.replace(dtype=DType.E2M1)), "epilogue": (Keep(to="c"), CAST, STORE)},
        "epilogue[0]: 'c' holds e2m1; keep rounds to f32, bf16, f16, e4m3, e5m2",
    ),
    "cast to another type": (
        {"epilogue": (Cast(to=DType.F32), STORE)},
        "the epilogue casts to f32 but operand 'd' holds bf16",
    ),
    "no cast": ({"epilogue": (STORE,)}, "operand 'd' holds bf16; add Cast(to=DType.BF16) before the store"),
    "bias of a matrix": (
        {"operands": operands(MATRIX), "epilogue": (Bias(vector="c"), CAST, STORE)},
        "epilogue[0]: bias by 'c' with box ('m', 'n'); allowed are (('m',), ('n',))",
    ),
    "bias of a scalar": (
        {"operands": operands(ALPHA), "epilogue": (Bias(vector="alpha"), CAST, STORE)},
        "bias by 'alpha' with box (); allowed are (('m',), ('n',))",
    ),
    "scale by a factor": (
        {"epilogue": (Scale(by="a"), CAST, STORE)},
        "scale by 'a' with box ('m', 'k'); allowed are ((), ('m',), ('n',), ('m', 'n'))",
    ),
    "a function of a factor": (
        {"epilogue": (Apply(expression="acc * a"), CAST, STORE)},
        "apply reads 'a' with box ('m', 'k'); allowed are ((), ('m',), ('n',), ('m', 'n'))",
    ),
    "residual of a vector": (
        {"operands": operands(BIAS), "epilogue": (Residual(matrix="bias"), CAST, STORE)},
        "epilogue[0]: residual 'bias' must have box ('m', 'n')",
    ),
    "beta of a vector": (
        {"operands": operands(MATRIX, BIAS), "epilogue": (Residual(matrix="c", beta="bias"), CAST, STORE)},
        "beta 'bias' must be a scalar, an operand with an empty box",
    ),
    "quantising to bf16": (
        {"operands": operands(SCALES), "epilogue": (Quantise(to="d", scales="d_sf"),)},
        "no rule quantises to bf16 with scales in ue8m0; known are e4m3 with ue8m0,",
    ),
    "scales of another block": (
        quantised(SCALES.replace(box=("m", "n/64"))),
        "scales 'd_sf' have box ('m', 'n/64'); ue8m0 scales of e4m3 are one per 32 columns, so write ('m', 'n/32')",
    ),
    "words of scales by row": (
        quantised(SCALES.replace(dtype=DType.UE8M0X4, box=("m", "n/128"))),
        "words of scales 'd_sf' lie along m, as products read them; set major='m'",
    ),
    "bytes of scales by column": (quantised(SCALES.replace(major="m")), "lie along n; leave major out"),
    "a block across the tile's edge": (
        quantised(SCALES.replace(dtype=DType.F32, box=("m", "n/128")), tile=Tile(m=128, n=192, k=64)),
        "a block of 128 columns would cross the edge of a tile with n=192",
    ),
    "a tensor scale of MXFP8": (
        {**quantised(SCALES, ALPHA), "epilogue": (Quantise(to="d", scales="d_sf", tensor_scale="alpha"),)},
        "tensor_scale is 'alpha'; ue4m3 scales need one and others have none",
    ),
    "a cast to a scale's type": (
        {"operands": operands(d={"dtype": DType.E2M1}), "epilogue": (Cast(to=DType.E2M1), STORE)},
        "epilogue[0]: cast casts to e2m1; an epilogue knows f32, bf16, f16, e4m3, e5m2",
    ),
    "a vector of scale bytes": (
        {"operands": operands(BIAS.replace(dtype=DType.UE8M0)), "epilogue": (Bias(vector="bias"), *SPEC.epilogue)},
        "epilogue[0]: bias reads 'bias', which holds ue8m0; an epilogue knows f32, bf16, f16, e4m3, e5m2",
    ),
    "sums of rows to a vector along n": (
        reducing("n", box=("n",)),
        "reduce along n to 'sums' with box ('n',); it needs ('m',)",
    ),
    "a sum of everything by value": (
        reducing("mn", box=()),
        "reduce to 'sums', which is passed by value; set on_device=True",
    ),
    "sums in bf16": (reducing("n", dtype=DType.BF16), "reduce to 'sums', which holds bf16; reductions are f32"),
    "a sum of rounded numbers": (
        {**reducing("n"), "epilogue": (CAST, SUMS, STORE)},
        "reduce comes after a cast; only a store may follow it",
    ),
    "two reductions to one operand": (
        {**reducing("n"), "epilogue": (SUMS, SUMS.replace(function="amax"), CAST, STORE)},
        "epilogue[1]: 'sums' is written twice; add an operand",
    ),
    "a sum that a step reads": (
        {**reducing("n"), "epilogue": (SUMS, Scale(by="sums"), CAST, STORE)},
        "epilogue[1]: scale reads 'sums', which the chain writes; add an operand to read",
    ),
    "quantising after a cast": (
        {**quantised(SCALES), "epilogue": (CAST, Quantise(to="d", scales="d_sf"))},
        "quantise comes after a cast; only a store may follow it",
    ),
    "store to a vector": (
        {"operands": operands(BIAS), "epilogue": (CAST, Store(to="bias", through="cd"))},
        "store to 'bias' needs box ('m', 'n')",
    ),
    "store through the mainloop": (
        {"epilogue": (CAST, Store(to="d", through="ab"))},
        "ring 'ab' must have turns='store' and hold ('d',) to stage this store",
    ),
    "step of an unknown operand": (
        {"epilogue": (Bias(vector="bias"), CAST, STORE)},
        "names operand 'bias', which it does not define",
    ),
    "an output too wide for a gate": ({"epilogue": (Gate(), CAST, STORE)}, "store to 'd' needs box ('m', 'n/2')"),
    "an output too narrow": ({"operands": operands(d={"box": ("m", "n/2")})}, "store to 'd' needs box ('m', 'n')"),
    "two gates": (gated(after=(Gate(),)), "epilogue[1]: a second gate; one a chain joins the columns of a product"),
    "a gate behind sums of columns": (
        gated(Operand(name="sums", dtype=DType.F32, box=("n",)), before=(SUMS.replace(along="m"),)),
        "epilogue[1]: a gate behind a reduction along m to 'sums'; reduce what the gate leaves",
    ),
    "a gate after a cast": ({"epilogue": (CAST, Gate(), STORE)}, "epilogue[1]: gate comes after a cast"),
    "a tile with gate and no up": (
        gated(tile=Tile(m=128, n=120, k=128)),
        "a gate takes 16 columns at a time, half of them gate and half up, but tile.n is 120; use a multiple of 16",
    ),
    "a wide bias behind a gate": (
        gated(BIAS, after=(Bias(vector="bias"),)),
        "epilogue[1]: bias by 'bias' with box ('n',); allowed are (('m',), ('n/2',))",
    ),
    "a narrow bias before a gate": (
        gated(BIAS.replace(box=("n/2",)), before=(Bias(vector="bias"),)),
        "epilogue[0]: bias by 'bias' with box ('n/2',); allowed are (('m',), ('n',))",
    ),
    "a wide residual behind a gate": (
        gated(MATRIX, after=(Residual(matrix="c"),)),
        "epilogue[1]: residual 'c' must have box ('m', 'n/2')",
    ),
    "a gate of a factor": (
        {"epilogue": (Gate(lambda gate, up, a: gate * up + a), CAST, STORE)},
        "gate reads 'a' with box ('m', 'k'); allowed are ((), ('m',), ('n/2',), ('m', 'n/2'))",
    ),
    "scales as wide as without the gate": (
        {**quantised(SCALES), "epilogue": (Gate(), Quantise(to="d", scales="d_sf"))},
        "one per 32 columns that a gate leaves, so write ('m', 'n/64')",
    ),
    "name": ({"name": "Bad Name"}, "String should match pattern"),
    "too many CTAs an SM": ({"ctas_per_sm": 5}, "less than or equal to 4"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_spec_that_breaks_a_rule_is_refused(rule: str) -> None:
    changes, sentence = RULES[rule]
    with pytest.raises(ValidationError) as raised:
        SPEC.replace(**changes)
    assert sentence in str(raised.value)


NODES: dict[str, tuple[Callable[[], object], str]] = {
    "axis": (lambda: Operand(name="x", dtype=DType.F32, box=("q",)), "axis 'q' is not m, n, k, s or g"),
    "axis twice": (lambda: Operand(name="x", dtype=DType.F32, box=("m", "m/2")), "names a problem axis twice"),
    "three axes": (lambda: Operand(name="x", dtype=DType.F32, box=("m", "n", "k")), "an operand covers at most 2"),
    "major": (lambda: Operand(name="x", dtype=DType.F32, box=("m", "n"), major="k"), "major 'k' is not an axis of box"),
    "empty ring": (lambda: Ring(name="x", holds=()), "name at least one"),
    "slots": (lambda: Ring(name="x", holds=("a",), slots=33), "less than or equal to 32"),
    "registers": (lambda: LOAD.replace(registers=100), "multiple of 8"),
    "warps": (lambda: LOAD.replace(warps=0), "greater than or equal to 1"),
    "tile.m": (lambda: Tile(m=4, n=8, k=64), "greater than or equal to 8"),
    "tile.n": (lambda: Tile(m=64, n=12, k=64), "multiple of 8"),
    "tile.k": (lambda: Tile(m=64, n=8, k=1024), "less than or equal to 512"),
    "cluster": (lambda: Cluster(m=4), "less than or equal to 2"),
    "raster": (lambda: Persistent(raster_group=0), "greater than or equal to 1"),
    "width": (lambda: Wgmma(drains=("ab",), width=12), "multiple of 8"),
    "unroll": (lambda: Wgmma(drains=("ab",), unroll=17), "less than or equal to 16"),
    "staged rows": (lambda: Wgmma(drains=("ab",), staged_rows=16), "warps stage 16 rows of other products; leave it"),
    "partial sums": (lambda: math(partials=3), "Input should be 1 or 2"),
    "partial sums of nobody": (
        lambda: Wgmma(drains=("ab",), partials=2),
        "partials=2: without promote the tensor core sums, and no product waits; leave it out",
    ),
    "partial sums beside an epilogue": (
        lambda: math(partials=2, overlap_epilogue=True),
        "products that wait for an epilogue have one set of registers; leave either out",
    ),
    "partial sums of a swapped product": (
        lambda: math(partials=2, swap_ab=True),
        "partials=2 and swap_ab: swapped products wait one at a time; leave either out",
    ),
    "whole waves": (lambda: SplitK(splits=2, whole_waves=True), "for splits that the launch decides on"),
}


@pytest.mark.parametrize("rule", NODES)
def test_a_node_that_breaks_a_rule_is_refused(rule: str) -> None:
    build, sentence = NODES[rule]
    with pytest.raises(ValidationError) as raised:
        build()
    assert sentence in str(raised.value)


def test_a_spec_answers_by_name() -> None:
    assert SPEC.operand("sfa").inner == "m"
    assert SPEC.operand("sfb").inner == "k/128"
    assert SPEC.operand("sfb").outer == "n/128"
    assert SPEC.ring("cd").holds == ("d",)
    assert SPEC.output == SPEC.operand("d")
    assert (SPEC.load.name, SPEC.math.name) == ("load", "math")
    assert ALPHA.is_scalar and not BIAS.is_scalar
    with pytest.raises(ValueError, match="is a scalar: it has no contiguous axis"):
        _ = ALPHA.inner
    with pytest.raises(ValueError, match="names ring 'zz', which it does not define; it defines 'ab', 'cd'"):
        SPEC.ring("zz")


@pytest.mark.parametrize(
    "swapped",
    [
        dense_sm100.bf16_gemm("nt", dense_sm100.PairShape(64, swap=True)),
        dense_sm120.bf16_gemm("nt", dense_sm120.WarpShape(16, 128, warps=(8, 1), swap=True)),
    ],
    ids=lambda spec: str(spec.arch),
)
def test_a_gate_joins_no_rows(swapped: KernelSpec) -> None:
    operands_ = tuple(each.replace(box=("m", "n/2")) if each.name == "d" else each for each in swapped.operands)
    with pytest.raises(ValidationError, match="a gate joins columns, which swap_ab puts on the product's rows; do not"):
        swapped.replace(operands=operands_, epilogue=(Gate(), *swapped.epilogue))


def test_halves_are_rows_of_a_factor_along_k() -> None:
    spec = catalog.bf16_gemm("nn", catalog.Shape(64, 32, groups=1))
    operands_ = tuple(each.replace(box=("m", "n/2")) if each.name == "d" else each for each in spec.operands)
    with pytest.raises(ValidationError, match="operand 'b' is n-contiguous; halves of n are brought together row by"):
        spec.replace(operands=operands_, epilogue=(Gate(layout="halves"), *spec.epilogue))


def test_axes_split_into_name_and_divisor() -> None:
    assert split_axis("k/128") == ("k", 128)
    assert split_axis("m") == ("m", 1)
    for wrong in ("k/0", "k/", "x", "K", "k/-1", ""):
        with pytest.raises(ValueError, match="is not m, n, k, s or g"):
            split_axis(wrong)


def test_one_tile_and_persistent_are_told_apart_by_kind() -> None:
    spec = SPEC.replace(schedule=OneTile(raster_group=4))
    again = KernelSpec.from_json(spec.to_json())
    assert isinstance(again.schedule, OneTile) and again.schedule.raster_group == 4
    assert isinstance(SPEC.schedule, Persistent)


def test_promotion_names_its_scales() -> None:
    assert MATH.body.promote == BlockScale(a="sfa", b="sfb")


@pytest.mark.parametrize(("left", "right"), [(0, 0), (63, 64), (64, 1)])
def test_heads_are_whole_pairs(left: int, right: int) -> None:
    with pytest.raises(ValidationError, match=rf"heads of {left} \+ {right} columns; both are even and one is not 0"):
        HeadSplit(left=left, mid=8, right=right)
    assert HeadSplit(left=64, mid=16, right=128).columns(384) == 416
