"""Descriptors and index formulas of the tcgen05 family against the fact tables, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layout_tables import evaluate, layout_table

from gemmgen.sim.tcgen05_copy import _COPIES, access_map
from gemmgen.sim.tcgen05_descriptors import (
    check_layout,
    decode_instruction,
    decode_shared_descriptor,
    load_lines,
)
from gemmgen.sim.tcgen05_operands import share_of

DESCRIPTORS = layout_table("sm100_descriptors")
TMEM = layout_table("sm100_tmem")
TILES = DESCRIPTORS["smem_examples"]
SHARED = np.random.default_rng(0).integers(0, 256, 227 * 1024, dtype=np.uint8)
REGISTERS_AT_X1 = {"16x128b": 2, "16x256b": 4}


@pytest.mark.parametrize("name", TILES)
def test_tile_addresses(name: str) -> None:
    """Every sampled element of every tile is found where the vendor's layout puts it."""
    tile = TILES[name]
    per_step, size, base = tile["k_per_instruction"], tile["element_bits"] // 8, int(tile["base_address"], 16)
    lines, line_bytes = (tile["mn"], per_step * size) if tile["major"] == "K" else (per_step, tile["mn"] * size)
    seen = 0
    for step, text in enumerate(tile["tcgen05_by_k"]):
        loaded = load_lines(SHARED, int(text, 16), lines, line_bytes, tile["major"])
        for mn, k, offset in tile["samples"]:
            if k // per_step == step:
                line, unit = (mn, k % per_step) if tile["major"] == "K" else (k % per_step, mn)
                expected = SHARED[base + offset : base + offset + size]
                np.testing.assert_array_equal(loaded[line, unit * size : (unit + 1) * size], expected)
                seen += 1
    assert seen == len(tile["samples"])


def test_unknown_descriptor_bits_are_refused() -> None:
    good = 1 << 46 | 2 << 61 | 64 << 32 | 64
    assert decode_shared_descriptor(good).matrix.stride_byte_offset == 1024
    for bad, message in (
        (good & ~(1 << 46), "version"),
        (good | 2 << 46, "version"),
        (good | 1 << 49, "base_offset"),
        (good | 1 << 52, "leading-byte-offset mode"),
        (good | 1 << 61, "layout"),
        (good | 1 << 14, "reserved bits"),
        (good | 1 << 48, "reserved bits"),
        (good | 1 << 55, "reserved bits"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_shared_descriptor(bad)


def test_wide_atoms_belong_to_mn_major_tf32() -> None:
    wide, plain = 1 << 46 | 1 << 61, 1 << 46 | 2 << 61
    check_layout(wide, "MN", "tf32")
    check_layout(plain, "K", "tf32")
    for descriptor, major, kind in ((wide, "K", "tf32"), (plain, "MN", "tf32"), (wide, "MN", "f16")):
        with pytest.raises(ValueError, match="32-byte atoms"):
            check_layout(descriptor, major, kind)  # type: ignore[arg-type]


def _kind(name: str) -> str:
    return {"f16kind": "f16", "tf32kind": "tf32", "f8f6f4kind": "f8f6f4"}.get(name.split("_")[0], name.split("_")[0])


KNOWN = [name for name in DESCRIPTORS["instr_examples"] if not name.startswith("i8kind") and "e3m2" not in name]


@pytest.mark.parametrize("name", KNOWN)
def test_instruction_descriptors(name: str) -> None:
    example = DESCRIPTORS["instr_examples"][name]
    kind, fields = _kind(name), example["fields"]
    scales = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}.get(kind, 0)
    values = example.get("by_sf_byte", {"0": example["value"]})
    for number, text in values.items():
        found = decode_instruction(int(text, 16), kind, 2 if name.endswith("cta2") else 1, scales)
        assert (found.m, found.n) == (fields["m_dim"] << 4, fields["n_dim"] << 3)
        assert (found.a, found.b) == tuple(_format(kind, fields.get(f"{x}_format", 0)) for x in "ab")
        assert (found.a_major, found.b_major) == tuple("MN" if fields.get(f"{x}_major") else "K" for x in "ab")
        assert found.a_scale_id == found.b_scale_id == int(number)
        if scales:
            assert found.scale == {0: "ue4m3", 1: "ue8m0"}[fields.get("scale_format", 0)]
        else:
            assert found.d == {0: "f16", 1: "f32"}[fields.get("c_format", 0)]


def _format(kind: str, code: int) -> str:
    codes: dict[str, dict[str, int]] = DESCRIPTORS["format_codes"]
    table = next(t for names, t in codes.items() if f"kind::{kind}" in names.split(" / "))
    return next(name for name, value in table.items() if value == code)


@pytest.mark.parametrize("name", [n for n in DESCRIPTORS["instr_examples"] if n not in KNOWN])
def test_formats_that_are_not_modelled(name: str) -> None:
    value = int(DESCRIPTORS["instr_examples"][name]["value"], 16)
    kind = "f8f6f4" if name.startswith("i8kind") else _kind(name)
    with pytest.raises(ValueError, match="modelled are"):
        decode_instruction(value, kind, 1, 1 if kind == "mxf8f6f4" else 0)


@pytest.mark.parametrize(
    ("value", "kind", "group", "scales", "message"),
    [
        (0x08100490 | 1 << 2, "f16", 1, 0, "reserved"),
        (0x08100490 | 1 << 3, "f16", 1, 0, "reserved"),
        (0x08100490 | 1 << 30, "f16", 1, 0, "reserved"),
        (0x08C00000 | 1 << 31, "mxf8f6f4", 1, 1, "reserved"),
        (0x0C100490, "f16", 1, 0, "M is 192"),
        (0x10100490, "f16", 1, 0, "M is 256"),
        (0x04100490, "f16", 2, 0, "M is 64"),
        (0x08100490 + (1 << 17), "f16", 1, 0, "N is 72"),
        (0x04100490 & ~(0x3F << 17), "f16", 1, 0, "N is 0"),
        (0x04A00000, "mxf8f6f4", 1, 1, "M is 64"),
        (0x08A00000, "mxf8f6f4", 2, 1, "M is 128"),
        (0x08A00480 | 1 << 29, "mxf4", 1, 2, "A's scale id is 1"),
        (0x08A00480 | 3 << 4, "mxf4", 1, 2, "B's scale id is 3"),
        (0x08200480 | 2 << 29, "mxf4nvf4", 1, 4, "A's scale id is 2"),
        (0x08200480, "mxf4nvf4", 1, 2, "ue4m3"),
        (0x08200000, "mxf8f6f4", 1, 1, "ue4m3"),
        (0x08A00280 | 1 << 15, "mxf8f6f4", 1, 1, "MN-major e2m1"),
        (0x08100090, "f16", 1, 0, "do not go together"),
        (0x08200900, "tf32", 1, 0, "accumulates in f32"),
    ],
)
def test_instruction_descriptors_that_are_refused(value: int, kind: str, group: int, scales: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_instruction(value, kind, group, scales)


def _formula(table: dict[str, str], key: str, count: int) -> np.ndarray:
    r, t = np.arange(count)[:, None], np.arange(32)[None, :]
    return np.broadcast_to(evaluate(table[key], r=r, t=t, R=count), (count, 32))


@pytest.mark.parametrize("shape", TMEM["ld"])
def test_load_and_store_shapes(shape: str) -> None:
    table = TMEM["ld"][shape]
    for x in table["counts"]:
        count = x * REGISTERS_AT_X1.get(shape, 1)
        found = access_map(shape, count)
        np.testing.assert_array_equal(found.lanes, _formula(table["formula"], "lane", count))
        np.testing.assert_array_equal(found.columns, _formula(table["formula"], "column", count))
        assert found.width == int(found.columns.max()) + 1
        assert found.height == int(found.lanes.max()) + 1
    for name, rows in table["maps"].items():
        found = access_map(shape, int(name[1:]) * REGISTERS_AT_X1.get(shape, 1))
        expected = np.array(rows)  # [thread, register, 2]
        np.testing.assert_array_equal(found.lanes.T, expected[..., 0])
        np.testing.assert_array_equal(found.columns.T, expected[..., 1])


@pytest.mark.parametrize("shape", TMEM["ld_pack16b"])
def test_packed_loads_read_two_columns_a_register(shape: str) -> None:
    table = TMEM["ld_pack16b"][shape]["formula"]
    count = REGISTERS_AT_X1.get(shape, 1) * 2
    found = access_map(shape, count)
    np.testing.assert_array_equal(2 * found.columns, _formula(table, "column_low_half", count))
    np.testing.assert_array_equal(2 * found.columns + 1, _formula(table, "column_high_half", count))


@pytest.mark.parametrize("name", TMEM["cp"])
def test_copy_shapes(name: str) -> None:
    table = TMEM["cp"][name]
    shape, _, replica = name.partition(".")
    found = _COPIES[shape, replica]
    assert (found.rows, found.words) == (table["source_rows"], table["source_words"])
    expected = [evaluate(table["formula"]["src_row"], lane=lane, column=0) for lane in range(128)]
    assert list(found.source_row) == expected


@pytest.mark.parametrize("name", TMEM["accumulator"])
def test_accumulator_places(name: str) -> None:
    """Lane and column of every element, as the share of each CTA holds it."""
    table = TMEM["accumulator"][name]
    group, m, n = int(name[7]), int(name.split("_M")[1].split("_")[0]), table["N"]
    share = share_of(m, n, group)
    row, col = np.arange(m)[:, None], np.arange(n)[None, :]
    expected: dict[str, Any] = {
        key: np.broadcast_to(evaluate(text, row=row, col=col, N=n), (m, n)) for key, text in table["formula"].items()
    }
    halves = n // share.d_columns
    lanes = np.arange(128)[share.lanes]
    lane = lanes[np.arange(m) % share.a_rows][:, None] + 64 * (col // share.d_columns) * (halves == 2)
    np.testing.assert_array_equal(np.broadcast_to(lane, (m, n)), expected["lane"])
    np.testing.assert_array_equal(np.broadcast_to(col % share.d_columns, (m, n)), expected["column"])
    np.testing.assert_array_equal(np.broadcast_to(row // share.a_rows, (m, n)), expected["cta"])
