"""Register fragments against the fact tables, and ldmatrix, stmatrix and movmatrix against theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_tables import evaluate, layout_table

from gemmgen.sim import fragments
from gemmgen.sim.fragments import Fragment, mma_sync_fragment, wgmma_a_fragment, wgmma_accumulator_fragment

WGMMA = layout_table("sm90_wgmma")["tables"]
MMA_SYNC = layout_table("mma_sync")["ops"]
MATRIX = layout_table("ldmatrix_stmatrix")["tables"]
RNG = np.random.default_rng(0)


def by_thread(positions: np.ndarray) -> np.ndarray:
    """[warps, registers, lanes, elements] as [thread, value]."""
    return positions.transpose(0, 2, 1, 3).reshape(positions.shape[0] * 32, -1)


def assert_positions(fragment: Fragment, table: dict[str, Any], row: str, col: str) -> None:
    rows, cols = by_thread(fragment.row), by_thread(fragment.col)
    t, v = np.indices(rows.shape)
    np.testing.assert_array_equal(rows, evaluate(table["formula"][row], t=t, v=v))
    np.testing.assert_array_equal(cols, evaluate(table["formula"][col], t=t, v=v))
    if "map" in table:
        np.testing.assert_array_equal(np.stack([rows, cols], axis=-1), np.array(table["map"]))


@pytest.mark.parametrize("name", [name for name in WGMMA if name.startswith("C")])
def test_wgmma_accumulator(name: str) -> None:
    n = WGMMA[name]["cols"]
    fragment = wgmma_accumulator_fragment(n)
    assert_positions(fragment, WGMMA[name], "row", "col")
    matrix = RNG.random((64, n), dtype=np.float32)
    registers = fragments.accumulator_to_registers(matrix)
    np.testing.assert_array_equal(registers.view(np.uint32), fragment.pack(matrix.view(np.uint32)))
    np.testing.assert_array_equal(fragments.registers_to_accumulator(registers), matrix)


def test_wgmma_half_accumulator_packs_neighbours() -> None:
    """An f16 accumulator holds value v in register v // 2, low half first."""
    fragment = wgmma_accumulator_fragment(64, bits=16)
    assert_positions(fragment, WGMMA["C_m64n64"], "row", "col")
    assert fragment.registers == 16


@pytest.mark.parametrize(("name", "bits"), [("A_bf16_m64k16", 16), ("A_tf32_m64k8", 32), ("A_e4m3_m64k32", 8)])
def test_wgmma_a_in_registers(name: str, bits: int) -> None:
    assert_positions(wgmma_a_fragment(bits), WGMMA[name], "row", "col")


@pytest.mark.parametrize(
    ("name", "k", "bits"), [("bf16_m16n8k16", 16, 16), ("tf32_m16n8k8", 8, 32), ("e4m3_m16n8k32", 32, 8)]
)
def test_mma_sync(name: str, k: int, bits: int) -> None:
    table = MMA_SYNC[name]
    assert_positions(mma_sync_fragment("A", k, bits), table["A"], "m", "k")
    b = mma_sync_fragment("B", k, bits)
    assert_positions(b, {"formula": table["B"]["formula"], "map": table["B"]["map"]}, "k", "n")
    assert_positions(mma_sync_fragment("C", k, 32), table["C"], "m", "n")
    for operand in ("A", "B", "C"):
        assert mma_sync_fragment(operand, k, 32 if operand == "C" else bits).registers == table[operand]["regs"]


@pytest.mark.parametrize(("k", "half_k", "bits"), [(16, 8, 16), (8, 4, 32), (32, 16, 8)])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_half_k_shapes_are_the_first_half(operand: str, k: int, half_k: int, bits: int) -> None:
    """m16n8k8 bf16, m16n8k4 tf32 and m16n8k16 8-bit: k below half_k, in the first half of the registers."""
    whole, half = mma_sync_fragment(operand, k, bits), mma_sync_fragment(operand, half_k, bits)
    assert half.registers * 2 == whole.registers
    np.testing.assert_array_equal(half.row, whole.row[:, : half.registers])
    np.testing.assert_array_equal(half.col, whole.col[:, : half.registers])


def test_illegal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="m16n8k64"):
        mma_sync_fragment("A", 64, 16)
    with pytest.raises(ValueError, match="wgmma n is 12"):
        wgmma_accumulator_fragment(12)


FRAGMENTS = (
    [wgmma_accumulator_fragment(n, bits) for n in (8, 96, 256) for bits in (16, 32)]
    + [wgmma_a_fragment(bits) for bits in (8, 16, 32)]
    + [mma_sync_fragment("A", k, bits) for k, bits in ((4, 32), (8, 32), (8, 16), (16, 16), (16, 8), (32, 8))]
    + [mma_sync_fragment("B", k, bits) for k, bits in ((4, 32), (8, 32), (8, 16), (16, 16), (16, 8), (32, 8))]
)


@given(fragment=st.sampled_from(FRAGMENTS), seed=st.integers(0, 1 << 32))
def test_pack_unpack_round_trip(fragment: Fragment, seed: int) -> None:
    matrix = np.random.default_rng(seed).integers(0, 1 << fragment.bits, (fragment.rows, fragment.cols))
    matrix = matrix.astype(f"u{fragment.bits // 8}")
    registers = fragment.pack(matrix)
    assert registers.shape[-2:] == (fragment.registers, 32)
    np.testing.assert_array_equal(fragment.unpack(registers), matrix)


def expected_registers(table: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """Registers [registers, 32] by the table: map[lane][element] = [address lane, index]."""
    where = np.array(table["map"])
    items = rows.view(f"u{table['element_bits'] // 8}")[where[..., 0], where[..., 1]]
    return np.ascontiguousarray(items).view(np.uint32).T


def random_rows(table: dict[str, Any]) -> np.ndarray:
    return RNG.integers(0, 256, (table["address_lanes"], 16), dtype=np.uint8)


@pytest.mark.parametrize("name", [name for name in MATRIX if "m8n8" in name])
def test_m8n8(name: str) -> None:
    table, trans = MATRIX[name], "trans" in name
    rows = random_rows(table)
    registers = expected_registers(table, rows)
    if name.startswith("ldmatrix"):
        np.testing.assert_array_equal(fragments.ldmatrix_m8n8(rows, trans), registers)
    else:
        np.testing.assert_array_equal(fragments.stmatrix_m8n8(registers, trans), rows)


@pytest.mark.parametrize("name", [name for name in MATRIX if "ldmatrix_m16n16" in name])
def test_ldmatrix_m16n16_b8(name: str) -> None:
    rows = random_rows(MATRIX[name])
    np.testing.assert_array_equal(fragments.ldmatrix_m16n16_trans_b8(rows), expected_registers(MATRIX[name], rows))


@pytest.mark.parametrize("name", [name for name in MATRIX if "stmatrix_m16n8" in name])
def test_stmatrix_m16n8_b8(name: str) -> None:
    rows = random_rows(MATRIX[name])
    np.testing.assert_array_equal(fragments.stmatrix_m16n8_trans_b8(expected_registers(MATRIX[name], rows)), rows)


@pytest.mark.parametrize("name", [name for name in MATRIX if "b4x16" in name or "b6x16" in name])
def test_ldmatrix_sub_byte(name: str) -> None:
    """The source holds 16 codes low bits first, then padding; the table places the 16 unpacked bytes."""
    bits = 4 if "b4x16" in name else 6
    codes = RNG.integers(0, 1 << bits, (MATRIX[name]["address_lanes"], 16), dtype=np.uint8)
    packed = [sum(int(code) << bits * i for i, code in enumerate(row)).to_bytes(16, "little") for row in codes]
    rows = np.frombuffer(b"".join(packed), dtype=np.uint8).reshape(-1, 16)
    expand = fragments.expand_b4x16_p64 if bits == 4 else fragments.expand_b6x16_p32
    np.testing.assert_array_equal(fragments.ldmatrix_m8n16(expand(rows)), expected_registers(MATRIX[name], codes))


def test_movmatrix_is_a_transposed_store_and_load() -> None:
    register = RNG.integers(0, 1 << 32, 32, dtype=np.uint32)
    through_memory = fragments.ldmatrix_m8n8(fragments.stmatrix_m8n8(register[None], trans=False), trans=True)
    np.testing.assert_array_equal(fragments.movmatrix(register), through_memory[0])
    np.testing.assert_array_equal(fragments.movmatrix(fragments.movmatrix(register)), register)
