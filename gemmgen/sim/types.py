"""The nouns shared by the parser and the instruction families: PTX types, operands, instructions.
Plain data only; it may not know how anything is executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
LANES = 32

# PTX type -> (bits, numpy dtype used to compute with it)
TYPES: dict[str, tuple[int, str]] = {
    "pred": (1, "p"),
    "b8": (8, "u8"),
    "u8": (8, "u8"),
    "s8": (8, "s8"),
    "b16": (16, "u16"),
    "u16": (16, "u16"),
    "s16": (16, "s16"),
    "f16": (16, "f16"),
    "bf16": (16, "u16"),
    "b32": (32, "u32"),
    "u32": (32, "u32"),
    "s32": (32, "s32"),
    "f32": (32, "f32"),
    "f16x2": (32, "u32"),
    "bf16x2": (32, "u32"),
    "b64": (64, "u64"),
    "u64": (64, "u64"),
    "s64": (64, "s64"),
    "f64": (64, "f64"),
    "f32x2": (64, "u64"),
    "b128": (128, "b128"),
}
DTYPES: dict[str, Any] = {
    "p": np.bool_,
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "s16": np.int16,
    "f16": np.float16,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
}


@dataclass(frozen=True)
class Reg:
    """A virtual register: its width class (p, 16, 32, 64, 128) and row in the warp's file of that class."""

    kind: str
    index: int
    name: str


@dataclass(frozen=True)
class Imm:
    """A literal: an integer, or the bits of a float with their width."""

    value: int
    float_bits: int = 0  # 0 for an integer, else 32 or 64

    def as_float(self) -> float:
        if self.float_bits == 32:
            return float(np.array(self.value, np.uint32).view(np.float32))
        if self.float_bits == 64:
            return float(np.array(self.value, np.uint64).view(np.float64))
        return float(self.value)


@dataclass(frozen=True)
class Special:
    name: str


@dataclass(frozen=True)
class Sym:
    """A variable's address plus an offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Label:
    name: str
    pc: int = -1


@dataclass(frozen=True)
class Void:
    """The `_` sink."""


@dataclass(frozen=True)
class Not:
    """`!p` as an operand."""

    reg: Reg


@dataclass(frozen=True)
class Vec:
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Pair:
    """`a|b` destinations."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Mem:
    """`[base+offset]`, with the coordinates or further parts of a tensor address if it has them."""

    base: Any
    offset: int = 0
    coords: tuple[Any, ...] = ()


Operand = Reg | Imm | Special | Sym | Label | Void | Not | Vec | Pair | Mem


@dataclass
class Instr:
    """One instruction: opcode split at dots, operands, guard predicate and its place in the text."""

    opcode: str
    parts: tuple[str, ...]
    operands: list[Any]
    guard: Reg | None
    negated: bool
    line: int
    pc: int
    text: str
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str:
        return self.parts[0]


def bits_of(ptx_type: str) -> int:
    return TYPES[ptx_type][0]


def dtype_of(ptx_type: str) -> str:
    return TYPES[ptx_type][1]
