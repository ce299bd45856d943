"""Fragments and scales as sm120 kernels load them, lane by lane, against the vendor's layout tables.

The headers themselves run, compiled by NVRTC, on tiles that are laid out here by the tables of the smem_swizzle.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from core_ptx import Bench
from layout_tables import layout_table

from gemmgen.runtime.compiler import cached_ptx

Words = npt.NDArray[np.uint32]

PLAIN = layout_table("mma_sync")["ops"]
SCALED = layout_table("sm120_mma_sync")
SWIZZLES = layout_table("smem_swizzle")["swizzles"]
LANES = np.arange(32)

LOAD = """
#include "gemmgen/sm120.cuh"
extern "C" __global__ void k(const u32* tile, u32* out) {
  for (u32 i = ptx::lane_index(); i < %(words)d; i += 32) ptx::store_shared_word(ptx::smem_base() + 4 * i, tile[i]);
  ptx::sync_warp();
  const gemmgen::%(type)s fragments(%(first)d);
  for (u32 step = 0; step < %(steps)d; ++step) {
    u32 x[%(blocks)d][4];
    fragments.load(x, ptx::smem_base(), step);
#pragma unroll
    for (u32 i = 0; i < %(blocks)d; ++i)
#pragma unroll
      for (u32 r = 0; r < 4; ++r) out[((step * %(blocks)d + i) * 4 + r) * 32 + ptx::lane_index()] = x[i][r];
  }
}
"""


def loaded(kind: str, image: npt.NDArray[np.uint8], first: int, steps: int, blocks: int) -> Words:
    """Registers [step, block of 16, register, lane]."""
    names = {"type": kind, "words": image.size // 4, "first": first, "steps": steps, "blocks": blocks}
    out = np.zeros(steps * blocks * 4 * 32, np.uint32)
    text = cached_ptx(LOAD % names, "sm120", "k.cu").text
    Bench(shared_bytes=image.size).run(text, np.ascontiguousarray(image.reshape(-1)).view(np.uint32), out)
    return out.reshape(steps, blocks, 4, 32)


def swizzled(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Rows of 64 or 128 bytes with their 16-byte chunks where the table stores them."""
    table = np.array(SWIZZLES[f"{rows.shape[1]}B"]["chunk_map"])
    chunks, found = rows.reshape(len(rows), -1, 16), np.empty((len(rows), rows.shape[1] // 16, 16), np.uint8)
    for row in range(len(rows)):
        found[row, table[row % len(table)]] = chunks[row]
    return found.reshape(rows.shape)


def element(side: str, operation: dict[str, object], lane: int, value: int) -> tuple[int, int]:
    """Row of the factor and k of an element of a 16-row fragment; B's are two fragments of 8 columns."""
    table = operation[side]["map"][lane]  # type: ignore[index]
    if side == "A":
        return tuple(table[value])
    each = len(table)
    k, n = table[value % each]
    return n + 8 * (value // each), k


def expected(side: str, name: str, codes: npt.NDArray[np.uint16], step: int, block: int) -> Words:
    """Registers [4, 32] of the fragment of 16 rows and one step, from the factor's elements [rows, k]."""
    operation = SCALED["ops"][name] if name in SCALED["ops"] else PLAIN[name]
    bits = {"bf16_m16n8k16": 16, "e4m3_m16n8k32": 8, "mxf4_m16n8k64": 4}[name]
    width = 256 // bits
    found = np.zeros((4, 32), np.uint32)
    for lane in range(32):
        for value in range(128 // bits):
            row, k = element(side, operation, lane, value)
            code = int(codes[block * 16 + row, step * width + k])
            found[value * bits // 32, lane] |= np.uint32(code << value * bits % 32)
    return found


def numbered(rows: int, k: int, bits: int, seed: int = 0) -> npt.NDArray[np.uint16]:
    """Codes that tell rows and columns apart: unique where 16 bits allow it."""
    if bits == 16:
        return np.arange(rows * k, dtype=np.uint16).reshape(rows, k)
    return np.random.default_rng(seed).integers(0, 1 << bits, (rows, k)).astype(np.uint16)


def row_bytes_of(codes: npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint8]:
    """Rows as they lie in memory, 4-bit codes two a byte."""
    if bits == 4:
        return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return np.ascontiguousarray(codes.astype(f"u{bits // 8}")).view(np.uint8)


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("row_bytes", [64, 128])
@pytest.mark.parametrize(("name", "bits"), [("bf16_m16n8k16", 16), ("e4m3_m16n8k32", 8), ("mxf4_m16n8k64", 4)])
def test_fragments_of_k_contiguous_factors(side: str, row_bytes: int, name: str, bits: int) -> None:
    codes = numbered(80, row_bytes * 8 // bits, bits)
    kind = f"KMajorFragments<gemmgen::Side::{side}, {row_bytes}>"
    found = loaded(kind, swizzled(row_bytes_of(codes, bits)), 32, row_bytes // 32, 2)
    for step in range(row_bytes // 32):
        for block in range(2):
            assert np.array_equal(found[step, block], expected(side, name, codes, step, block + 2)), (step, block)


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize(("first", "blocks"), [(0, 1), (16, 1), (32, 2), (64, 4), (0, 8)])
@pytest.mark.parametrize("tile_k", [32, 64])
def test_fragments_of_factors_that_are_not_k_contiguous(side: str, first: int, blocks: int, tile_k: int) -> None:
    """Atoms of 64 elements, transposed by ldmatrix; a warp starts inside an atom or spans two."""
    codes = numbered(128, tile_k, 16)
    atoms = [swizzled(row_bytes_of(np.ascontiguousarray(codes[at : at + 64].T), 16)) for at in (0, 64)]
    kind = f"MnMajorFragments<gemmgen::Side::{side}, {tile_k}>"
    found = loaded(kind, np.concatenate(atoms), first, tile_k // 16, blocks)
    for step in range(tile_k // 16):
        for block in range(blocks):
            assert np.array_equal(
                found[step, block], expected(side, "bf16_m16n8k16", codes, step, first // 16 + block)
            ), (step, block)


@pytest.mark.parametrize("side", ["A", "B"])
def test_fragments_of_4_bit_factors_among_8_bit_ones(side: str) -> None:
    """Eight bytes and eight of padding for 16 elements; a code comes to bits 2 to 5 of its byte (table: container)."""
    codes = numbered(48, 128, 4)
    packed = row_bytes_of(codes, 4).reshape(48, 8, 8)
    spread = np.full((48, 8, 16), 0xFF, np.uint8)
    spread[:, :, :8] = packed
    kind = f"KMajorFragments<gemmgen::Side::{side}, 128, true>"
    found = loaded(kind, swizzled(spread.reshape(48, 128)), 16, 4, 2)
    for step in range(4):
        for block in range(2):
            wanted = expected(side, "e4m3_m16n8k32", codes << 2, step, block + 1)
            assert np.array_equal(found[step, block], wanted), (step, block)


PICK = """
#include "gemmgen/sm120.cuh"
using Scales = gemmgen::ScaleWords<0, 32, %(words)d, %(block)d, %(per)d, %(tile_k)d, %(scales)d>;
extern "C" __global__ void k(const u32* tile, u32* out, u32 kb, u32 k) {
  const u32 lane = ptx::lane_index();
  for (u32 i = lane; i < 32 * %(words)d; i += 32) ptx::store_shared_word(ptx::smem_base() + 4 * i, tile[i]);
  ptx::sync_warp();
  u32 words[%(words)d][2];
  Scales::read<%(stride)d>(words, 0, gemmgen::scale_%(axis)s(), kb, k);
#pragma unroll
  for (u32 step = 0; step < %(steps)d; ++step) {
    u32 x[2];
    Scales::pick(x, words, kb, step, k);
    out[step * 64 + lane] = x[0];
    out[step * 64 + 32 + lane] = x[1];
  }
}
"""


def held(axis: str) -> npt.NDArray[np.int64]:
    """The row of A, or column of B, whose scale each lane holds."""
    return np.array(SCALED["block_scale"]["sfa_row_held_by_lane" if axis == "row" else "sfb_col_held_by_lane"])


CASES = [
    (scales, block, tile_k)
    for scales, blocks, tiles in ((1, (32, 128), (64, 128)), (2, (32, 128), (128, 256)), (4, (16,), (128, 256)))
    for block in blocks
    for tile_k in tiles
]


@pytest.mark.parametrize("axis", ["row", "col"])
@pytest.mark.parametrize(("scales", "block", "tile_k"), CASES)
def test_scales_that_a_product_takes(axis: str, scales: int, block: int, tile_k: int) -> None:
    """Every K block that a word serves; and the last one, ragged, where bytes past k are NaN."""
    span, step_k = 4 * block, 32 if scales == 1 else 64
    words, per = max(1, tile_k // span), max(1, span // tile_k)
    stride = 16 if axis == "row" else 8
    names = {"words": words, "block": block, "per": per, "tile_k": tile_k, "scales": scales, "axis": axis}
    text = cached_ptx(PICK % {**names, "stride": stride, "steps": tile_k // step_k}, "sm120", "k.cu").text
    whole = per * tile_k * (2 if per == 1 else 1)
    for k in (whole, whole - tile_k + 32):
        for kb in range(-(-k // tile_k)):
            _check_picks(text, axis, scales, block, tile_k, kb, k)


def _check_picks(text: str, axis: str, scales: int, block: int, tile_k: int, kb: int, k: int) -> None:
    span, step_k = 4 * block, 32 if scales == 1 else 64
    words, first = max(1, tile_k // span), kb * tile_k // span
    codes = np.random.default_rng(kb).integers(1, 0x7F, (32, 4 * words)).astype(np.uint32)
    beyond = first * 4 + np.arange(4 * words) >= -(-k // block)
    codes[:, beyond] = 0xFF
    codes.reshape(32, words, 4)[:, (first + np.arange(words)) * span >= k] = 0  # no such word: the copy engine fills in
    image = sum(codes.reshape(32, words, 4)[:, :, byte] << 8 * byte for byte in range(4)).T.astype(np.uint32)
    out = np.zeros(tile_k // step_k * 2 * 32, np.uint32)
    arguments = (int(each).to_bytes(4, "little") for each in (kb, k))
    Bench(shared_bytes=max(1024, 128 * words)).run(text, np.ascontiguousarray(image), out, *arguments)
    found = out.reshape(tile_k // step_k, 2, 32)
    for step in range(tile_k // step_k):
        for index in range(2):
            rows = held(axis) + index * (16 if axis == "row" else 8)
            for byte in range(scales):
                at = kb * tile_k + step * step_k + byte * step_k // scales
                picked = found[step, index] >> 8 * byte & 0xFF
                if at < k:
                    assert np.array_equal(picked, codes[rows, at // block - first * 4]), (kb, k, step, index, byte)
                else:
                    assert not (picked == 0xFF).any(), "a scale past the end of k is NaN"
