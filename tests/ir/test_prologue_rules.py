"""Rules of a prologue and of slices, by the sentence that says which part breaks them and what to change."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gemmgen.catalog import PrenormShape, tf32_hc_prenorm_gemm
from gemmgen.ir import Arch, Bias, Cast, DType, KernelSpec, Operand, Persistent, Role, SplitK, Store, SumOfSquares

WHOLE = tf32_hc_prenorm_gemm(PrenormShape(64, 24))
LANES = tf32_hc_prenorm_gemm(PrenormShape(128, 32), arch=Arch.SM100)
SLICES = tf32_hc_prenorm_gemm(PrenormShape(64, 24), slices=True)
STORE, _, MMA, LOAD = LANES.roles
CAST, SUMS = Cast(to=DType.F32), SumOfSquares(to="sqr_sum")


def operands(spec: KernelSpec, *extra: Operand, **changes: dict[str, Any]) -> dict[str, Any]:
    return {"operands": (*(each.replace(**changes.get(each.name, {})) for each in spec.operands), *extra)}


RULES: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "twice": (WHOLE, {"prologue": (SUMS, SUMS, CAST)}, "prologue[1]: a second sum_of_squares; a prologue has one of a"),
    "cast first": (WHOLE, {"prologue": (CAST, SUMS)}, "prologue[0]: a cast must be the last step, right before"),
    "no cast": (
        WHOLE,
        {"prologue": (SUMS,)},
        "prologue[0]: nothing reads A's values but the tensor core; add Cast(to=DType.F32) behind it",
    ),
    "cast to bf16": (
        WHOLE,
        {"prologue": (SUMS, Cast(to=DType.BF16))},
        "prologue[1]: casts A from bf16 to bf16 beside B in f32; a prologue casts bf16 to f32 for a B in f32",
    ),
    "B in bf16": (WHOLE, operands(WHOLE, b={"dtype": DType.BF16}), "casts A from bf16 to f32 beside B in bf16"),
    "A along m": (WHOLE, operands(WHOLE, a={"major": "m"}), "A is m-contiguous; lanes read pairs along k, so make k"),
    "sums along n": (
        WHOLE,
        operands(WHOLE, sqr_sum={"box": ("n",)}),
        "sum_of_squares to 'sqr_sum' with box ('n',) of f32; it needs ('m',) of f32",
    ),
    "sums in bf16": (WHOLE, operands(WHOLE, sqr_sum={"dtype": DType.BF16}), "of bf16; it needs ('m',) of f32"),
    "sums without slices": (
        SLICES,
        operands(SLICES, sqr_sum={"box": ("m",)}),
        "operand 'sqr_sum' has box ('m',); every output of a schedule SplitK(splits=None, slices=True) has the axis",
    ),
    "sums that the epilogue reads": (
        WHOLE,
        {"epilogue": (Bias(vector="sqr_sum"), Store(to="d"))},
        "sum_of_squares to 'sqr_sum', which the epilogue reads or writes; add an operand",
    ),
    "no role that casts": (
        LANES,
        {"roles": (STORE, MMA.replace(body=MMA.body.replace(drains=("ab",))), LOAD), "rings": LANES.rings[:2]},
        "has a prologue of 2 steps and roles [] with body TmemCast; Tcgen05 needs exactly one for a prologue",
    ),
    "an idle sum": (
        WHOLE,
        {"prologue": (CAST,)},
        "no ring holds and no step names operand 'sqr_sum'; remove or use it",
    ),
    "slices by a number": (
        SLICES,
        {"schedule": SplitK(splits=4, slices=True)},
        "slices are as many as the outputs have, but splits is 4; use splits=None",
    ),
    "slices of a whole": (
        SLICES,
        {"schedule": Persistent()},
        "every output of a schedule SplitK(splits=None, slices=True)",
    ),
    "a bias of slices": (
        SLICES,
        {
            **operands(SLICES, Operand(name="bias", dtype=DType.F32, box=("n",))),
            "epilogue": (Bias(vector="bias"), Store(to="d")),
        },
        "epilogue[0]: bias of partial sums, which only a cast and a store may follow",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_spec_that_breaks_a_rule_is_refused(rule: str) -> None:
    spec, changes, sentence = RULES[rule]
    with pytest.raises(ValidationError) as raised:
        spec.replace(**changes)
    assert sentence in str(raised.value)


def test_slices_come_first_and_beside_two_axes() -> None:
    with pytest.raises(ValidationError, match="has slices inside others; 's' is the first axis"):
        Operand(name="d", dtype=DType.F32, box=("m", "s", "n"))
    d = SLICES.operand("d")
    assert (d.inner, d.outer) == ("n", "m") and d.plane == ("m", "n")
    assert SLICES.operand("sqr_sum").outer == "s"
    assert [each.name for each in WHOLE.outputs] == ["d", "sqr_sum"]


def test_a_prologue_is_stored_and_read_back() -> None:
    for spec in (WHOLE, SLICES):
        assert KernelSpec.from_json(spec.to_json()) == spec
    plain = WHOLE.replace(prologue=(CAST,), operands=tuple(each for each in WHOLE.operands if each.name != "sqr_sum"))
    assert [each.name for each in plain.outputs] == ["d"]
    assert isinstance(plain.math, Role)
