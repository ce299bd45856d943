"""Products that a bias, an activation or a gate finishes: the chain behind them, and names that tiles are chosen by.

Knows chains and names: no kernel of these is written out, and none of these names is a function to call.
"""

from __future__ import annotations

import re
from typing import get_args

from gemmgen.ir import Activation, Bias, Cast, DType, Epilogue, Gate, Operand, Residual, Step, Store

ACTIVATIONS: tuple[str, ...] = get_args(Activation.model_fields["function"].annotation)
SM90_PRODUCTS = ("fp8_gemm_nt", "bf16_gemm_nt", "bf16_gemm_nn", "bf16_gemm_tn", "bf16_gemm_tt")
"""Plain products that sm90 has kernels for."""


def finished_output(
    d: DType, residual: bool, bias: DType | None, activation: str | None, gate: str | None = None
) -> Epilogue:
    """An output of that type, behind what was asked for of a bias, a C, and an activation or a gate."""
    operands, steps = [Operand(name="d", dtype=d, box=("m", "n/2" if gate else "n"))], list[Step]()
    name = [str(d)]
    if bias is not None:  # first of all, where sums may start from it
        operands.insert(0, Operand(name="bias", dtype=bias, box=("n",)))
        steps.append(Bias(vector="bias"))
        name.append(f"bias_{bias}")
    if residual:
        operands.insert(0, Operand(name="c", dtype=d, box=("m", "n")))
        steps.append(Residual(matrix="c"))
        name.append("c")
    if gate is not None:
        steps.append(Gate(activation or "silu", layout=gate))
        name += [activation or "silu", gate]
    elif activation is not None:
        steps.append(Activation(function=activation))  # type: ignore[arg-type]
        name.append(activation)
    if d != DType.F32:
        steps.append(Cast(to=d))
    return Epilogue(name="_".join(name), operands=tuple(operands), steps=(*steps, Store(to="d")))


def finish_of(epilogue: Epilogue) -> str | None:
    """``bias``, ``relu``, ``bias_relu`` and so on where the chain is that and an output, of whatever types."""
    *before, last = epilogue.steps
    kinds = " ".join(step.kind for step in epilogue.steps)
    if not isinstance(last, Store) or not re.fullmatch("(bias )?(activation )?(cast )?store", kinds):
        return None
    boxes = {each.name: each.box for each in epilogue.operands}
    if last.accumulate or epilogue.main.heads is not None or boxes[last.to] != ("m", "n"):
        return None
    if any(boxes[step.vector] != ("n",) for step in before if isinstance(step, Bias)):
        return None
    named = [step for step in before if not isinstance(step, Cast)]
    return "_".join(step.function if isinstance(step, Activation) else step.kind for step in named) or None


_FINISHES = [
    finished_output(DType.BF16, False, bias, activation)
    for bias in (None, DType.F32)
    for activation in (None, *ACTIVATIONS)
    if bias or activation
]
FINISHED = {f"{product}_{finish_of(each)}": (product, each) for product in SM90_PRODUCTS for each in _FINISHES}
"""Names of products so finished, which tuned files know them by, and what is measured: D in bf16 and a bias in fp32."""
