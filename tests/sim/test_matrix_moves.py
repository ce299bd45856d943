"""ldmatrix and stmatrix as instructions: every form against the layout tables, and the forms that do not exist."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from core_ptx import Bench, kernel
from layout_tables import layout_table

from gemmgen import sim

MATRIX = layout_table("ldmatrix_stmatrix")["tables"]
LOADS = [name for name in MATRIX if name.startswith("ldmatrix")]
STORES = [name for name in MATRIX if name.startswith("stmatrix")]
SHARED = ".shared .align 128 .b8 image[1024];"
COPY_IN = """
mov.u32 %r1, %tid.x; mov.u32 %r2, image; mad.lo.u32 %r3, %r1, 16, %r2; ld.param.u64 %d1, [rows];
mul.wide.u32 %d2, %r1, 16; add.s64 %d1, %d1, %d2; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d1];
st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7}; bar.sync 0;
"""


def names(count: int) -> str:
    return "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"


def load_rows(opcode: str, registers: int, rows: np.ndarray) -> np.ndarray:
    """Registers [registers, 32] after the load; %r8 holds the address of the lane's row."""
    body = COPY_IN + f"mov.u32 %r8, %r3; {opcode} {names(registers)}, [%r8];"
    body += f"ld.param.u64 %d3, [out]; mul.wide.u32 %d2, %r1, {4 * registers}; add.s64 %d3, %d3, %d2;"
    body += "".join(f"st.global.b32 [%d3+{4 * i}], %r{20 + i};" for i in range(registers))
    image, out = np.zeros((32, 16), np.uint8), np.zeros((32, registers), np.uint32)
    image[: len(rows)] = rows
    Bench().run(kernel(body, ".param .u64 out, .param .u64 rows", SHARED), out, image)
    return out.T


def expected(table: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """Registers by the table: map[lane][element] = [address lane, index]."""
    where = np.array(table["map"])
    items = rows.view(f"u{table['element_bits'] // 8}")[where[..., 0], where[..., 1]]
    return np.ascontiguousarray(items).view(np.uint32).T


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of 16 codes, low bits first, the rest of 16 bytes filled with ones."""
    words = [sum(int(code) << bits * i for i, code in enumerate(row)) | -1 << 16 * bits for row in codes]
    return np.array([np.frombuffer((w & (1 << 128) - 1).to_bytes(16, "little"), np.uint8) for w in words])


def narrow_bits(name: str) -> int:
    return 4 if "b4x16" in name else 6 if "b6x16" in name else 0


@pytest.mark.parametrize("name", LOADS)
def test_loads(name: str) -> None:
    table, rng, bits = MATRIX[name], np.random.default_rng(1), narrow_bits(name)
    rows = rng.integers(0, 1 << (bits or 8), (table["address_lanes"], 16)).astype(np.uint8)
    source = packed(rows, bits) if bits else rows
    found = load_rows(table["ptx"], table["registers"], source)
    np.testing.assert_array_equal(found, expected(table, rows))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("bits", [4, 6])
def test_transposed_loads_of_narrow_codes(bits: int, count: int) -> None:
    """They place the bytes as m16n16 .b8 does, after each code got a byte of its own."""
    table = MATRIX[f"ldmatrix_m16n16_x{count}_trans_b8"]
    codes = np.random.default_rng(2).integers(0, 1 << bits, (16 * count, 16)).astype(np.uint8)
    padding = {4: "b4x16_p64", 6: "b6x16_p32"}[bits]
    opcode = f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8x16.{padding}"
    found = load_rows(opcode, table["registers"], packed(codes, bits))
    np.testing.assert_array_equal(found, expected(table, codes))


@pytest.mark.parametrize("name", STORES)
def test_stores(name: str) -> None:
    table = MATRIX[name]
    count, rows = table["registers"], table["address_lanes"]
    wanted = np.random.default_rng(3).integers(0, 256, (rows, 16), np.uint8).astype(np.uint8)
    held = np.ascontiguousarray(expected(table, wanted).T)
    body = "mov.u32 %r1, %tid.x; mov.u32 %r2, image; mad.lo.u32 %r3, %r1, 16, %r2;"
    body += f"ld.param.u64 %d1, [rows]; mul.wide.u32 %d2, %r1, {4 * count}; add.s64 %d1, %d1, %d2;"
    body += "".join(f"ld.global.b32 %r{20 + i}, [%d1+{4 * i}];" for i in range(count))
    body += f"{table['ptx']} [%r3], {names(count)}; bar.sync 0; setp.ge.u32 %p1, %r1, {rows}; @%p1 bra END;"
    body += "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3]; ld.param.u64 %d3, [out]; mul.wide.u32 %d2, %r1, 16;"
    body += "add.s64 %d3, %d3, %d2; st.global.v4.b32 [%d3], {%r4, %r5, %r6, %r7}; END:"
    out = np.zeros((rows, 16), np.uint8)
    Bench().run(kernel(body, ".param .u64 out, .param .u64 rows", SHARED), out, held)
    np.testing.assert_array_equal(out, wanted)


def test_lanes_past_the_rows_may_hold_any_address() -> None:
    """x2 reads the addresses of lanes 0 to 15 only; here those of the others are far outside."""
    rows = np.random.default_rng(4).integers(0, 256, (32, 16), np.uint8).astype(np.uint8)
    far = "setp.ge.u32 %p1, %r1, 16; @%p1 mov.u32 %r8, 0x7ffffff1; "
    found = load_rows(far + "ldmatrix.sync.aligned.m8n8.x2.shared.b16", 2, rows)
    np.testing.assert_array_equal(found, expected(MATRIX["ldmatrix_m8n8_x2_b16"], rows[:16]))


def test_a_row_off_16_bytes_is_a_fault() -> None:
    rows = np.zeros((32, 16), np.uint8)
    with pytest.raises(sim.SimulationError, match="16"):
        load_rows("add.u32 %r8, %r8, 8; ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64", 4, rows)


ILLEGAL = [
    ("ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8", 8),
    ("ldmatrix.sync.aligned.m16n16.x1.shared.b8", 2),
    ("ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64", 1),
    ("ldmatrix.sync.aligned.m8n16.x1.shared.b8", 1),
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 2),
    ("ldmatrix.sync.aligned.m8n8.shared.b16", 1),
]


@pytest.mark.parametrize(("opcode", "registers"), ILLEGAL)
def test_forms_that_do_not_exist(opcode: str, registers: int) -> None:
    with pytest.raises(sim.UnknownInstruction, match=re.escape("ldmatrix")):
        load_rows(opcode, registers, np.zeros((32, 16), np.uint8))


def test_byte_stores_are_transposed_only() -> None:
    body = "mov.u32 %r2, image; stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r2], {%r3};"
    with pytest.raises(sim.UnknownInstruction, match=r"m16n8\.trans\.b8"):
        Bench().run(kernel(body, "", SHARED))
