"""wgmma matrix descriptors against the fact tables: every sm_90 example, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_tables import layout_table

from gemmgen.sim.descriptors import (
    MatrixDescriptor,
    decode_wgmma_descriptor,
    encode_wgmma_descriptor,
    load_matrix,
    matrix_byte_index,
    matrix_chunk_index,
)
from gemmgen.sim.swizzle import SPAN_BYTES, SmemSwizzle

TABLES = layout_table("descriptors")
EXAMPLES = TABLES["smem_examples"]
SHARED = np.random.default_rng(0).integers(0, 256, 227 * 1024, dtype=np.uint8)


def codes_at(addresses: np.ndarray, elem_bytes: int) -> np.ndarray:
    octets = SHARED[addresses[..., None] + np.arange(elem_bytes)]
    return np.ascontiguousarray(octets).view(f"u{elem_bytes}")[..., 0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_addresses(name: str) -> None:
    example = EXAMPLES[name]
    per_step, elem_bytes = example["k_per_instruction"], example["element_bits"] // 8
    base = int(example["base_address"], 16)
    seen = 0
    for step, text in enumerate(example["wgmma_by_k"]):
        index = matrix_byte_index(int(text, 16), example["mn"], per_step, elem_bytes, example["major"])
        for mn, k, offset in example["samples"]:
            if k // per_step == step:
                assert index[mn, k % per_step] == base + offset, (mn, k)
                seen += 1
    assert seen == len(example["samples"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_loads(name: str) -> None:
    example = EXAMPLES[name]
    rows, per_step, elem_bytes = example["mn"], example["k_per_instruction"], example["element_bits"] // 8
    for text in example["wgmma_by_k"]:
        index = matrix_byte_index(int(text, 16), rows, per_step, elem_bytes, example["major"])
        loaded = load_matrix(SHARED, int(text, 16), rows, per_step, elem_bytes, example["major"])
        np.testing.assert_array_equal(loaded, codes_at(index, elem_bytes))
        chunks = matrix_chunk_index(int(text, 16), rows, per_step, elem_bytes, example["major"])
        assert set(np.unique(index // 16)) == set(np.unique(chunks))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_fields(name: str) -> None:
    fields = EXAMPLES[name]["wgmma_fields_k0"]
    value = int(EXAMPLES[name]["wgmma_by_k"][0], 16)
    decoded = decode_wgmma_descriptor(value)
    assert decoded.start_address == fields["start_address"] << 4
    assert decoded.leading_byte_offset == fields["leading_byte_offset"] << 4
    assert decoded.stride_byte_offset == fields["stride_byte_offset"] << 4
    assert SPAN_BYTES[decoded.swizzle] == {0: 16, 1: 128, 2: 64, 3: 32}[fields["layout_type"]]
    assert encode_wgmma_descriptor(decoded) == value


def test_field_positions() -> None:
    positions = {f["name"]: f["first_bit"] for f in TABLES["wgmma_smem_descriptor_64bit"]}
    decoded = decode_wgmma_descriptor(
        1 << positions["start_address"]
        | 2 << positions["leading_byte_offset"]
        | 3 << positions["stride_byte_offset"]
        | 1 << positions["layout_type"]
    )
    assert decoded == MatrixDescriptor(16, 32, 48, SmemSwizzle.B128)
    with pytest.raises(ValueError, match="base_offset is 5"):
        decode_wgmma_descriptor(5 << positions["base_offset"])


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 47, 48, 52, 61])
def test_reserved_bits_are_refused(bit: int) -> None:
    with pytest.raises(ValueError, match="reserved bits"):
        decode_wgmma_descriptor(1 << bit)


def test_operand_outside_shared_memory_is_refused() -> None:
    descriptor = encode_wgmma_descriptor(MatrixDescriptor(227 * 1024 - 1024, 16, 1024, SmemSwizzle.B128))
    with pytest.raises(ValueError, match="shared memory ends at"):
        load_matrix(SHARED, descriptor, 64, 16, 2, "K")


def test_unaligned_field_is_refused() -> None:
    with pytest.raises(ValueError, match="start_address is 8"):
        encode_wgmma_descriptor(MatrixDescriptor(8, 0, 0, SmemSwizzle.NONE))


@given(
    start=st.integers(0, 4096),
    leading=st.integers(0, 255),
    stride=st.integers(0, 255),
    mode=st.sampled_from(SmemSwizzle),
)
def test_round_trip(start: int, leading: int, stride: int, mode: SmemSwizzle) -> None:
    fields = MatrixDescriptor(16 * start, 16 * leading, 16 * stride, mode)
    assert decode_wgmma_descriptor(encode_wgmma_descriptor(fields)) == fields


@given(start=st.integers(0, 512), mode=st.sampled_from([SmemSwizzle.B32, SmemSwizzle.B64, SmemSwizzle.B128]))
def test_swizzle_follows_the_absolute_address(start: int, mode: SmemSwizzle) -> None:
    """A tile that starts anywhere: every row's bytes lie where the XOR of the whole address puts them."""
    span = SPAN_BYTES[mode]
    descriptor = encode_wgmma_descriptor(MatrixDescriptor(16 * start, 16, 8 * span, mode))
    index = matrix_byte_index(descriptor, 64, 32, 1, "K")
    mask = span // 16 - 1
    for row, byte in ((0, 0), (5, 17), (63, 31)):
        logical = 16 * start + row * span + byte
        assert index[row, byte] == logical ^ ((logical >> 7) & mask) << 4
