"""Swizzles against the chunk maps, formulas and layout atoms of the fact tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_tables import evaluate, layout_table

from gemmgen.sim.swizzle import PATTERN_BYTES, SPAN_BYTES, SmemSwizzle, swizzle_address

MODES = {"NONE": SmemSwizzle.NONE, "32B": SmemSwizzle.B32, "64B": SmemSwizzle.B64, "128B": SmemSwizzle.B128}
TABLES = layout_table("smem_swizzle")


@pytest.mark.parametrize("name", MODES)
def test_chunk_map_and_formula(name: str) -> None:
    table, mode = TABLES["swizzles"][name], MODES[name]
    assert SPAN_BYTES[mode] == table["row_bytes"]
    assert PATTERN_BYTES[mode] == table["pattern_bytes"]
    pitch = table["row_bytes"]
    for row, chunks in enumerate(table["chunk_map"]):
        stored = [swizzle_address(row * pitch + 16 * c, mode) for c in range(len(chunks))]
        assert stored == [row * pitch + 16 * c for c in chunks]
    address = np.arange(0, 4096, dtype=np.int64)
    np.testing.assert_array_equal(swizzle_address(address, mode), evaluate(table["xor"], a=address))


@pytest.mark.parametrize("name", TABLES["atoms"])
def test_layout_atoms(name: str) -> None:
    atom = TABLES["atoms"][name]
    elem, pitch = atom["element_bits"] // 8, atom["row_bytes"]
    mn, k = np.indices((atom["mn"], atom["k"]))
    row, column = (mn, k) if atom["major"] == "K" else (k, mn)
    offsets = swizzle_address((row * pitch + column * elem).astype(np.int64), MODES[atom["swizzle"]])
    np.testing.assert_array_equal(offsets, np.array(atom["map"]))


@given(address=st.integers(0, 1 << 18), mode=st.sampled_from(SmemSwizzle))
def test_is_an_involution_within_its_pattern(address: int, mode: SmemSwizzle) -> None:
    moved = swizzle_address(address, mode)
    assert swizzle_address(moved, mode) == address
    assert moved // PATTERN_BYTES[mode] == address // PATTERN_BYTES[mode]
