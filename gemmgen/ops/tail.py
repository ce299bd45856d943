"""What a product is followed by: the tensors that an operator takes after its factors, and what becomes of them.

Knows operands and epilogues; factors, scales and kernels are the operators' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from gemmgen.ir import DType, Epilogue, Operand
from gemmgen.ops.memory import tma_store_fault
from gemmgen.ops.problem import TORCH_DTYPES, Tensors

OUTPUTS = {TORCH_DTYPES[dtype]: dtype for dtype in (DType.BF16, DType.F32)}
"""Types of a plain output."""


@dataclass(frozen=True, eq=False)
class Tail:
    """Tensors in call order, which of them are written, the one that a kernel stores block by block, and numbers.

    ``choices`` are arguments of ``spec_for``. Made once by ``plain`` or ``fused``, and told apart by identity.
    """

    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    main: Operand
    scalars: tuple[str, ...]
    choices: dict[str, Any]
    gated: bool = False

    def spec_choices(self, tensors: Tensors) -> dict[str, Any]:
        """Arguments of ``spec_for``, with whether TMA cannot store the output, or reads of C not be as wide."""
        stored = [each for each in self.operands if each == self.main or (each.name == "c" and self.is_plain)]
        direct = any(tma_store_fault(each, tensors[each.name]) is not None for each in stored)
        direct = direct or not _moves_by_chunks(self.main)
        return {**self.choices, "direct_store": direct}

    @property
    def is_plain(self) -> bool:
        """Whether this is a rounded output and perhaps a C, no epilogue of a user."""
        return "epilogue" not in self.choices


@cache
def plain(dtype: torch.dtype, residual: bool, accumulate: bool = False) -> Tail:
    """An output of that type, with C of the same type added to it or not, or what it holds."""
    d = output_dtype(dtype)
    names = ("c", "d") if residual else ("d",)
    operands = tuple(Operand(name=name, dtype=d, box=("m", "n")) for name in names)
    choices = {"d": d, "residual": residual, **({"accumulate": True} if accumulate else {})}
    return Tail(operands, ("d",), operands[-1], (), choices)


def accumulates(c: torch.Tensor | None, d: torch.Tensor, operand: Operand) -> bool:
    """Whether C is the output itself, and one that the copy engine can add to where it lies."""
    return c is not None and c is d and d.dtype == torch.float32 and tma_store_fault(operand, d) is None


@cache
def fused(epilogue: Epilogue) -> Tail:
    """The tensors and numbers that an epilogue names, in its order."""
    tensors = tuple(each for each in epilogue.operands if not each.is_scalar)
    scalars = tuple(each.name for each in epilogue.operands if each.is_scalar)
    return Tail(tensors, epilogue.outputs, epilogue.main, scalars, {"epilogue": epilogue}, epilogue.gated)


def _moves_by_chunks(main: Operand) -> bool:
    """Whether staged chunks of any kernel, of at most 128 bytes of a row, stay on one side of the gaps of heads."""
    heads = main.heads
    if heads is None:
        return True
    columns = 128 // main.dtype.bytes
    return heads.left % columns == heads.right % columns == heads.mid * main.dtype.bytes % 16 == 0


def output_dtype(dtype: torch.dtype) -> DType:
    """The IR's name of an output type."""
    if dtype not in OUTPUTS:
        raise TypeError(f"d: dtype is {dtype}; must be one of {', '.join(str(each) for each in OUTPUTS)}")
    return OUTPUTS[dtype]
