"""Register fragments of warp and warpgroup matrix instructions: which lane holds which element.

Registers are uint32 arrays [registers, 32 lanes], with a leading axis of 4 warps for a warpgroup; matrices are codes.
Knows element positions only; it may not know what the codes mean or how the interpreter stores registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.unsignedinteger[Any]]
Registers = npt.NDArray[np.uint32]
Operand = Literal["A", "B", "C"]

LANES = 32
WARPS = 4


@dataclass(frozen=True)
class Fragment:
    """Where a matrix of rows x cols elements lives in the registers of a warp (warps=1) or a warpgroup (warps=4)."""

    rows: int
    cols: int
    bits: int
    registers: int
    warps: int
    operand: Operand

    @property
    def per_register(self) -> int:
        return 32 // self.bits

    @cached_property
    def row(self) -> npt.NDArray[np.int64]:
        """Row of every element, [warps, registers, lanes, elements of a register]."""
        return self._positions[0]

    @cached_property
    def col(self) -> npt.NDArray[np.int64]:
        """Column of every element, [warps, registers, lanes, elements of a register]."""
        return self._positions[1]

    @cached_property
    def flat(self) -> npt.NDArray[np.int64]:
        """row * cols + col, same shape."""
        return self.row * self.cols + self.col

    @cached_property
    def _positions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        shape = (self.warps, self.registers, LANES, self.per_register)
        warp, reg, lane, element = np.indices(shape)
        group, thread = lane // 4, lane % 4
        value = reg * self.per_register + element
        if self.operand == "C":
            row, col = group + 8 * (value // 2 % 2), 8 * (value // 4) + 2 * thread + value % 2
        elif self.operand == "A":
            row, col = group + 8 * (reg % 2), (4 * (reg // 2) + thread) * self.per_register + element
        else:
            row, col = (4 * reg + thread) * self.per_register + element, group
        return row + 16 * warp, col

    def unpack(self, registers: Registers) -> Codes:
        """Matrix of codes [rows, cols] held by registers [(warps,) registers, 32]."""
        if self.bits < 8:
            raise ValueError(f"codes of {self.bits} bits are unpacked by their values: see gather")
        held = np.ascontiguousarray(registers, dtype=np.uint32).view(self._code_type)
        matrix = np.empty(self.rows * self.cols, dtype=self._code_type)
        matrix[self.flat.reshape(-1)] = held.reshape(-1)
        return matrix.reshape(self.rows, self.cols)

    @cached_property
    def source(self) -> npt.NDArray[np.int64]:
        """Where each element of the matrix [rows, cols] is in the flat order of warps, registers, lanes, bits."""
        place = np.empty(self.rows * self.cols, np.int64)
        place[self.flat.reshape(-1)] = np.arange(place.size)
        return place.reshape(self.rows, self.cols)

    @cached_property
    def flat_registers(self) -> npt.NDArray[np.int64]:
        """flat of a warp's fragment with one element a register, [registers, lanes]."""
        return np.ascontiguousarray(self.flat.reshape(self.registers, LANES))

    def gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Matrix [rows, cols] of values in the order of registers: of codes, or of what they stand for."""
        return values.reshape(-1).take(self.source)

    def pack(self, matrix: Codes) -> Registers:
        """Registers [(warps,) registers, 32] that hold the matrix of codes."""
        held = np.ascontiguousarray(matrix).view(self._code_type).reshape(-1)[self.flat]
        registers = held.reshape(self.warps, self.registers, -1).view(np.uint32)
        return registers if self.warps > 1 else registers[0]

    @property
    def _code_type(self) -> np.dtype[Any]:
        return np.dtype(f"u{self.bits // 8}")


_MMA_SYNC_K = {32: (4, 8), 16: (8, 16), 8: (16, 32), 4: (64,)}  # element bits -> legal k of m16n8k*


@lru_cache(maxsize=64)
def mma_sync_fragment(operand: Operand, k: int, bits: int) -> Fragment:
    """Fragment of mma.sync m16n8k{k}: A [16, k] and B [k, 8] of elements of 4 to 32 bits, C [16, 8] of 32 or 16."""
    if operand == "C":
        return Fragment(16, 8, bits, 4 * bits // 32, 1, "C")
    if k not in _MMA_SYNC_K.get(bits, ()):
        raise ValueError(f"mma.sync m16n8k{k} with {bits}-bit elements does not exist; legal k by bits: {_MMA_SYNC_K}")
    registers = k * bits // 128
    return Fragment(16, k, bits, 2 * registers, 1, "A") if operand == "A" else Fragment(k, 8, bits, registers, 1, "B")


@lru_cache(maxsize=64)
def wgmma_accumulator_fragment(n: int, bits: int = 32) -> Fragment:
    """Fragment of the 64 x n accumulator of wgmma; n is 8..256 in steps of 8, bits 32 (f32, s32) or 16 (f16)."""
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma n is {n}; it must be a multiple of 8 from 8 to 256")
    return Fragment(64, n, bits, n * bits // 64, WARPS, "C")


@lru_cache(maxsize=8)
def wgmma_a_fragment(bits: int) -> Fragment:
    """Fragment of the 64 x k A operand of wgmma from registers; k is 256 / bits."""
    return Fragment(64, 256 // bits, bits, 4, WARPS, "A")


def accumulator_to_registers(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """64 x n accumulator of 4-byte elements as registers [4 warps, n // 2, 32]; a transposition beats an index."""
    split = matrix.reshape(WARPS, 2, 8, -1, 4, 2)  # warp, row half, group, column block, thread, column parity
    return np.ascontiguousarray(split.transpose(0, 3, 1, 5, 2, 4)).reshape(WARPS, -1, LANES)


def registers_to_accumulator(registers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Inverse of accumulator_to_registers: [4, n // 2, 32] to [64, n]."""
    split = registers.reshape(WARPS, -1, 2, 2, 8, 4)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 1, 5, 3)).reshape(16 * WARPS, -1)


def ldmatrix_m8n8(rows: npt.NDArray[np.uint8], trans: bool) -> Registers:
    """ldmatrix .b16: rows [8 * count, 16 bytes] in address-lane order to registers [count, 32]."""
    matrices = np.ascontiguousarray(rows).view(np.uint16).reshape(-1, 8, 8)
    if trans:
        matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    return matrices.view(np.uint32).reshape(-1, LANES)


def stmatrix_m8n8(registers: Registers, trans: bool) -> npt.NDArray[np.uint8]:
    """stmatrix .b16: registers [count, 32] to rows [8 * count, 16 bytes] in address-lane order."""
    matrices = np.ascontiguousarray(registers).view(np.uint16).reshape(-1, 8, 8)
    if trans:
        matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    return matrices.view(np.uint8).reshape(-1, 16)


def movmatrix(register: Registers) -> Registers:
    """movmatrix .trans.b16: one register [32] holding an 8x8 matrix to the register holding its transpose."""
    matrix = np.ascontiguousarray(register).view(np.uint16).reshape(8, 8)
    return np.ascontiguousarray(matrix.T).view(np.uint32).reshape(LANES)


def ldmatrix_m16n16_trans_b8(rows: npt.NDArray[np.uint8]) -> Registers:
    """ldmatrix m16n16 .trans .b8: rows [16 * count, 16 bytes] to registers [2 * count, 32]."""
    matrices = np.ascontiguousarray(rows.reshape(-1, 16, 16).transpose(0, 2, 1))
    return matrices.view(np.uint32).reshape(-1, LANES)


def stmatrix_m16n8_trans_b8(registers: Registers) -> npt.NDArray[np.uint8]:
    """stmatrix m16n8 .trans .b8: registers [count, 32] to rows [8 * count, 16 bytes]."""
    held = (
        np.ascontiguousarray(registers).view(np.uint8).reshape(-1, 8, 4, 2, 2)
    )  # matrix, group, thread, col half, row parity
    return np.ascontiguousarray(held.transpose(0, 2, 4, 3, 1)).reshape(-1, 16)


def expand_b4x16_p64(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """16 nibbles (the first 8 bytes, low first) of each 16-byte row, one to a byte: [rows, 16]."""
    packed = rows[:, :8]
    return np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(-1, 16)


def expand_b6x16_p32(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """16 six-bit codes (the first 12 bytes, low first) of each 16-byte row, one to a byte: [rows, 16]."""
    triple = rows[:, :12].reshape(-1, 4, 3).astype(np.uint32)
    word = triple[..., 0] | triple[..., 1] << 8 | triple[..., 2] << 16
    spread = np.stack([word >> shift & 0x3F for shift in (0, 6, 12, 18)], axis=-1)
    return spread.astype(np.uint8).reshape(-1, 16)


def ldmatrix_m8n16(rows: npt.NDArray[np.uint8]) -> Registers:
    """ldmatrix m8n16 of rows [8 * count, 16 bytes], already expanded, to registers [count, 32]."""
    return np.ascontiguousarray(rows).view(np.uint32).reshape(-1, LANES)
