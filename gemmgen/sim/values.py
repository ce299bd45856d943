"""Registers of a warp as rows of 32 lanes under every type, and operands that are not registers.
It knows types and constants only; it may not know any instruction."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .types import DTYPES, LANES, Array, Imm, Reg

KIND_OF = {"p": "p", "u16": "16", "s16": "16", "f16": "16", "u32": "32", "s32": "32", "f32": "32"}
KIND_OF |= {"u64": "64", "s64": "64", "f64": "64"}
UNSIGNED = {"16": "u16", "32": "u32", "64": "u64"}
BITS = {
    "p": 1,
    "u8": 8,
    "s8": 8,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "u64": 64,
    "s64": 64,
    "f64": 64,
}


class Rows(dict[str, Any]):
    """The rows of each type, made when a type is first asked for: most kernels use few of them.

    A whole file, as block functions index it, goes by the name `type_`.
    """

    def __init__(self, files: dict[str, Array]) -> None:
        super().__init__(b128=list(files["128"]))
        self.files = files

    def __missing__(self, name: str) -> Any:
        dtype = name.removesuffix("_")
        view = self.files[KIND_OF[dtype]].view(DTYPES[dtype])
        found: Any = view if name.endswith("_") else list(view)
        self[name] = found
        return found


class Registers:
    """One file per register width; rows[dtype][index] are views of it. Fresh registers hold all ones (NaN)."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.files: dict[str, Array] = {
            "p": np.zeros((counts["p"], LANES), np.bool_),
            "16": np.full((counts["16"], LANES), 0xFFFF, np.uint16),
            "32": np.full((counts["32"], LANES), 0xFFFFFFFF, np.uint32),
            "64": np.full((counts["64"], LANES), 0xFFFFFFFFFFFFFFFF, np.uint64),
            "128": np.full((counts["128"], LANES, 2), 0xFFFFFFFFFFFFFFFF, np.uint64),
        }
        self.rows = Rows(self.files)

    def row(self, register: Reg, dtype: str) -> Array:
        """The register's lanes as dtype; a narrower type reads the low bits."""
        found: Array
        if KIND_OF.get(dtype) == register.kind or (dtype == "b128" and register.kind == "128"):
            found = self.rows[dtype][register.index]
        elif register.kind in UNSIGNED and BITS[dtype] < int(register.kind):
            found = self.raw(register).view(DTYPES[dtype])[:: int(register.kind) // BITS[dtype]]
        else:
            raise UnknownInstruction(f"register {register.name} of {register.kind} bits cannot be read as {dtype}")
        return found

    def raw(self, register: Reg) -> Array:
        """The register's lanes as unsigned bits of its own width."""
        found: Array = self.rows["p" if register.kind == "p" else UNSIGNED[register.kind]][register.index]
        return found


@lru_cache(maxsize=8192)
def constant(value: int, dtype: str) -> Array:
    """32 lanes of an integer, wrapped to the width of dtype; its bits are what counts."""
    if dtype == "p":
        row = np.full(LANES, bool(value))
    else:
        bits = BITS[dtype]
        row = np.full(LANES, value % (1 << bits), DTYPES[f"u{bits}"]).view(DTYPES[dtype])
    row.setflags(write=False)
    return row


@lru_cache(maxsize=4096)
def literal(imm: Imm, dtype: str) -> Array:
    """32 lanes of a literal as an operand of a typed instruction."""
    if dtype in ("f32", "f64", "f16") and imm.float_bits != BITS[dtype]:
        row = np.full(LANES, imm.as_float(), DTYPES[dtype])
        row.setflags(write=False)
        return row
    return constant(imm.value, dtype)


def is_constant(operand: Any) -> bool:
    return isinstance(operand, Imm)
