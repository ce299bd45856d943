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
        self.rows: dict[str, list[Array]] = {
            dtype: list(self.files[kind].view(DTYPES[dtype])) if len(self.files[kind]) else []
            for dtype, kind in KIND_OF.items()
        }
        self.rows["b128"] = list(self.files["128"])
        self.tables: dict[str, Any] = dict(self.rows)  # what block functions see: rows by type, whole files as `type_`
        self.tables.update({f"{dtype}_": self.files[kind].view(DTYPES[dtype]) for dtype, kind in KIND_OF.items()})

    def row(self, register: Reg, dtype: str) -> Array:
        """The register's lanes as dtype; a narrower type reads the low bits."""
        if KIND_OF.get(dtype) == register.kind:
            return self.rows[dtype][register.index]
        if dtype == "b128" and register.kind == "128":
            return self.rows[dtype][register.index]
        if register.kind in UNSIGNED and BITS[dtype] < int(register.kind):
            whole = self.rows[UNSIGNED[register.kind]][register.index]
            view: Array = whole.view(DTYPES[dtype])[:: int(register.kind) // BITS[dtype]]
            return view
        raise UnknownInstruction(f"register {register.name} of {register.kind} bits cannot be read as {dtype}")

    def raw(self, register: Reg) -> Array:
        """The register's lanes as unsigned bits of its own width."""
        return self.rows["p" if register.kind == "p" else UNSIGNED[register.kind]][register.index]


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
