"""Epilogues that no kernel could run are refused when they are built, by themselves and in a spec, in a sentence."""

from __future__ import annotations

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.ir import (
    Apply,
    Bias,
    Cast,
    DType,
    Epilogue,
    Gate,
    Keep,
    Operand,
    Quantise,
    Reduce,
    Residual,
    Scale,
    Step,
    Store,
)

D = Operand(name="d", dtype=DType.F32, box=("m", "n"))
HALF = D.replace(box=("m", "n/2"))
ROW = Operand(name="bias", dtype=DType.F32, box=("n",))
C = Operand(name="c", dtype=DType.BF16, box=("m", "n"))
NUMBER = Operand(name="alpha", dtype=DType.F32, box=())
Q = Operand(name="q", dtype=DType.E4M3, box=("m", "n"))
STORE = Store(to="d")
INTO_BF16 = (D.replace(dtype=DType.BF16), (Cast(to=DType.BF16), STORE))

REFUSALS: dict[str, tuple[tuple[Operand, ...], tuple[Step, ...], str]] = {
    "no store": ((ROW,), (Bias(vector="bias"),), "the epilogue must end with a store"),
    "a store in the middle": ((D, ROW), (STORE, Bias(vector="bias"), STORE), r"\[0\]: a store must be the last step"),
    "a step behind a cast": (
        (INTO_BF16[0], ROW),
        (Cast(to=DType.BF16), Bias(vector="bias"), STORE),
        r"\[1\]: bias comes after a cast",
    ),
    "no cast": ((INTO_BF16[0],), (STORE,), "operand 'd' holds bf16; add Cast"),
    "another cast": ((INTO_BF16[0],), (Cast(to=DType.F16), STORE), "casts to f16 but operand 'd' holds bf16"),
    "written twice": ((D,), (Keep(to="d"), STORE), "'d' is written twice"),
    "its own output": ((D,), (Residual(matrix="d"), STORE), "residual reads 'd', which the chain writes"),
    "idle operand": ((D, ROW), (STORE,), "no step names operand 'bias'"),
    "unknown operand": ((D,), (Bias(vector="bias"), STORE), "names operand 'bias', which it does not define"),
    "operand defined twice": ((D, ROW, ROW), (Bias(vector="bias"), STORE), "operands define 'bias' twice"),
    "a matrix for a bias": ((D, C), (Bias(vector="c"), STORE), r"bias by 'c' with box \('m', 'n'\)"),
    "a box along k": ((D, ROW.replace(box=("k",))), (Scale(by="bias"), STORE), r"scale by 'bias' with box \('k',\)"),
    "two gates": ((HALF,), (Gate(), Gate(), STORE), r"\[1\]: a second gate"),
    "columns that a gate took": ((D,), (Gate(), STORE), r"store to 'd' needs box \('m', 'n/2'\)"),
    "a scale for too many columns": (
        (Q, Operand(name="sf", dtype=DType.F32, box=("m", "n/32"))),
        (Quantise(to="q", scales="sf"),),
        r"one per 128 columns, so write \('m', 'n/128'\)",
    ),
    "a reduction to a number of the host": (
        (D, NUMBER),
        (Reduce(function="sum", along="mn", to="alpha"), STORE),
        "'alpha', which is passed by value; set on_device=True",
    ),
    "a ring": ((D,), (Store(to="d", through="cd"),), "ring 'cd', but which ring stages it is the kernel's business"),
    "columns of a residual": (
        (D, C.replace(major="m")),
        (Residual(matrix="c"), STORE),
        r"\[0\]: 'c' is m-contiguous; epilogues read rows, so leave major out",
    ),
    "columns of what a function reads": (
        (D, C.replace(major="m")),
        (Apply(expression="acc + c"), STORE),
        "'c' is m-contiguous; epilogues read rows",
    ),
    "columns of a gate's matrix": (
        (HALF, C.replace(box=("m", "n/2"), major="m")),
        (Gate(expression="silu(gate) * up * c"), STORE),
        "'c' is m-contiguous; epilogues read rows",
    ),
    "columns of the output": ((D.replace(major="m"),), (STORE,), "'d' is m-contiguous; epilogues store rows"),
    "a narrow number of the host": (
        (D, NUMBER.replace(dtype=DType.E4M3)),
        (Scale(by="alpha"), STORE),
        "'alpha', a number of the host in e4m3; those are passed as f32",
    ),
    "a ragged bias": ((D, ROW.replace(ragged=True)), (Bias(vector="bias"), STORE), "'bias', which is ragged"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_chain_that_cannot_be_is_refused_when_it_is_built(what: str) -> None:
    operands, steps, sentence = REFUSALS[what]
    with pytest.raises(ValueError, match=sentence):
        Epilogue(name="chain", operands=operands, steps=steps)


@pytest.mark.parametrize("what", [what for what in REFUSALS if what != "a ring"])
def test_so_is_a_spec_with_it(what: str) -> None:
    operands, steps, sentence = REFUSALS[what]
    spec = catalog.bf16_gemm("nt", catalog.Shape(64, 64), DType.F32, direct_store=True)
    held = tuple(each for each in spec.operands if each.name != "d")
    with pytest.raises(ValueError, match=sentence):
        spec.replace(operands=(*held, *operands), epilogue=steps)


def test_numbers_on_the_device_may_have_any_type_that_is_read() -> None:
    number = NUMBER.replace(dtype=DType.BF16, on_device=True)
    assert Epilogue(name="chain", operands=(D, number), steps=(Scale(by="alpha"), STORE)).outputs == ("d",)


@pytest.mark.parametrize(
    "name", ["m", "k", "lambda", "is", "new", "short", "u32", "float2", "others", "self", "gemmgen"]
)
def test_operands_are_not_called_by_words_of_python_or_cuda(name: str) -> None:
    with pytest.raises(ValueError, match=f"operand '{name}' is called by a word of Python or CUDA"):
        Operand(name=name, dtype=DType.F32, box=("n",))


def test_operands_are_not_called_as_other_parameters() -> None:
    """Of a kernel in which CTAs share K blocks: it has those workspaces itself."""
    spec = next(each for each in catalog.specs().values() if each.name.endswith("64x96_share"))
    bias = ROW.replace(name="partials")
    with pytest.raises(ValueError, match="operand 'partials' is called as another parameter of this kernel; rename it"):
        lower(spec.replace(operands=(*spec.operands, bias), epilogue=(Bias(vector="partials"), *spec.epilogue)))
