"""Tensor maps: rules, editing, and box copies against a loop over elements written here."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmgen.sim import tensor_map as tm

BASE = 7 << 32
SPANS = {"none": 0, "32b": 32, "64b": 64, "128b": 128}
RNG = np.random.default_rng(4)


def encode(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "dtype": "bfloat16",
        "address": BASE,
        "dims": (64, 32),
        "strides": (128,),
        "box": (64, 8),
        "element_strides": (1, 1),
        "swizzle": "128b",
        "interleave": "none",
        "oob_fill": "zero",
    }
    return tm.encode_tensor_map(**{**fields, **changes})


# encoding, rules


def test_is_128_bytes_and_decodes() -> None:
    data = encode()
    assert len(data) == tm.TENSOR_MAP_BYTES
    decoded = tm.decode_tensor_map(data)
    assert (decoded.element.name, decoded.address, decoded.dims, decoded.box) == ("bfloat16", BASE, (64, 32), (64, 8))
    assert tm.pack_tensor_map(decoded) == data
    assert (decoded.transaction_bytes, decoded.rows, decoded.inner_bytes) == (1024, 8, 128)


def test_element_strides_default_to_one() -> None:
    assert encode(element_strides=None) == encode()


@pytest.mark.parametrize("data", [b"", b"\0" * 128, b"\xff" * 128, encode()[:127]])
def test_other_bytes_are_no_tensor_map(data: bytes) -> None:
    with pytest.raises(ValueError, match="no tensor map"):
        tm.decode_tensor_map(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bf16"}, "dtype is 'bf16'; it must be one of uint8"),
        ({"swizzle": "96b"}, "swizzle is '96b'"),
        ({"interleave": "8b"}, "interleave is '8b'"),
        ({"oob_fill": "one"}, "oob_fill is 'one'"),
        ({"address": BASE + 8}, "address: 0x700000008 is not a multiple of 16 bytes"),
        ({"strides": (130,)}, r"strides\[0\]: 130 bytes .* pad the row to 144 bytes"),
        ({"strides": (1 << 40,)}, r"below 2\^40"),
        ({"strides": (-16,)}, r"strides\[0\]: -16"),
        ({"strides": ()}, "strides: got 0 values for rank 2; pass 1"),
        ({"box": (64,)}, "box: got 1 values for rank 2; pass 2"),
        ({"dims": (1,) * 6}, "there are 6; a tensor map has 1 to 5"),
        ({"dims": (0, 32)}, r"dims\[0\]: 0 elements"),
        ({"dims": (64, (1 << 32) + 1)}, r"dims\[1\]"),
        ({"box": (64, 257)}, r"box\[1\]: 257 elements; a box has 1 to 256"),
        ({"box": (64, 0)}, r"box\[1\]: 0 elements"),
        ({"box": (4, 8)}, r"box\[0\]: 4 elements of bfloat16 are 8 bytes; .* multiple of 8 elements"),
        ({"box": (128, 8)}, r"box\[0\]: 128 elements of bfloat16 are 256 bytes, more than the 128 bytes .* at most 64"),
        ({"box": (64, 8), "swizzle": "64b"}, r"more than the 64 bytes of the swizzle; choose at most 32"),
        ({"element_strides": (1, 9)}, r"element_strides\[1\]: 9; it must be 1 to 8"),
        ({"element_strides": (1, 0)}, r"element_strides\[1\]: 0"),
        ({"dtype": "uint16", "oob_fill": "nan"}, "nan needs a floating-point type, dtype is uint16"),
        ({"interleave": "16b"}, "interleave: 16b is not modelled"),
        ({"dtype": "16u4_align8b", "dims": (63, 32)}, r"dims\[0\]: 63 elements .* multiple of 2"),
        ({"dtype": "16u4_align16b", "dims": (192, 32), "box": (128, 8)}, r"dims\[0\]: 192 elements .* multiple of 128"),
        ({"dtype": "16u4_align16b", "dims": (256, 32)}, r"box\[0\]: 64 elements; 16u4_align16b needs 128"),
        ({"dtype": "16u4_align16b", "address": BASE + 16}, "not a multiple of 32 bytes"),
        (
            {"dtype": "16u4_align16b", "dims": (256, 32), "box": (128, 8), "swizzle": "64b"},
            "are 128 bytes, more than the 64 bytes",
        ),
    ],
)
def test_rules(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(**changes)


# tensormap.replace


@pytest.mark.parametrize(
    ("field", "index", "value", "same_as"),
    [
        ("global_address", None, BASE + 4096, {"address": BASE + 4096}),
        ("global_dim", 1, 7, {"dims": (64, 7)}),
        ("global_stride", 0, 256, {"strides": (256,)}),
        ("box_dim", 0, 32, {"box": (32, 8)}),
        ("element_stride", 1, 2, {"element_strides": (1, 2)}),
        ("swizzle_mode", None, 0, {"swizzle": "none"}),
        ("elemtype", None, 6, {"dtype": "float16"}),
        ("elemtype", None, 1, {"dtype": "uint16"}),
        ("elemtype", None, 10, {"dtype": "bfloat16"}),
        ("fill_mode", None, 1, {"oob_fill": "nan"}),
    ],
)
def test_replace(field: str, index: int | None, value: int, same_as: dict[str, Any]) -> None:
    assert tm.replace_field(encode(), field, index, value) == encode(**same_as)


def test_replace_rank_is_counted_from_zero_and_keeps_the_dimensions() -> None:
    data = tm.replace_field(encode(), "rank", None, 0)
    assert tm.decode_tensor_map(data).dims == (64,)
    assert tm.replace_field(data, "rank", None, 1) == encode()


def test_replace_may_break_a_rule_until_the_map_is_used() -> None:
    data = tm.replace_field(encode(), "global_stride", 0, 24)
    with pytest.raises(ValueError, match=r"strides\[0\]: 24"):
        tm.decode_tensor_map(data)
    assert tm.replace_field(data, "global_stride", 0, 128) == encode()


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("colour", None, 0, "unknown field 'colour'"),
        ("rank", None, 5, "rank: value 5 is out of range"),
        ("rank", 0, 1, "takes no ordinal"),
        ("box_dim", None, 1, "ordinal is None"),
        ("global_stride", 4, 16, "ordinal is 4; it must be 0 to 3"),
        ("box_dim", 0, 1 << 16, "does not fit"),
        ("interleave_layout", None, 3, "out of range"),
    ],
)
def test_replace_refuses(field: str, index: int | None, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tm.replace_field(encode(), field, index, value)


# box copies

ELEMENT_BYTES = {"uint8": 1, "bfloat16": 2, "uint32": 4, "float64": 8}


def expected_copy(
    fields: dict[str, Any], coords: tuple[int, ...], memory: np.ndarray, shared_address: int
) -> dict[int, bytes]:
    """Shared byte address -> element, by a loop over the box; elements out of bounds are zero."""
    size, span = ELEMENT_BYTES[fields["dtype"]], SPANS[fields["swizzle"]]
    steps = (1, *fields["element_strides"][1:])
    counts = [-(-b // s) for b, s in zip(fields["box"], steps, strict=True)]
    strides = (size, *fields["strides"])
    pitch = span or counts[0] * size
    out = {}
    for number, index in enumerate(product(*[range(n) for n in reversed(counts)])):
        where = [c + i * s for c, i, s in zip(coords, reversed(index), steps, strict=True)]
        inside = all(0 <= w < d for w, d in zip(where, fields["dims"], strict=True))
        at = fields["address"] - BASE + sum(w * s for w, s in zip(where, strides, strict=True))
        row, column = divmod(number, counts[0])
        target = shared_address + row * pitch + column * size
        if span:
            target ^= (target >> 7) % (span // 16) << 4
        out[target] = memory[at : at + size].tobytes() if inside else bytes(size)
    return out


@st.composite
def box_copies(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], int]:
    dtype = draw(st.sampled_from(sorted(ELEMENT_BYTES)))
    size, rank = ELEMENT_BYTES[dtype], draw(st.integers(1, 5))
    dims = [draw(st.integers(1, 40)), *[draw(st.integers(1, 5)) for _ in range(rank - 1)]]
    strides, extent = [], dims[0] * size
    for dim in dims[1:]:
        strides.append(-(-extent // 16) * 16 + 16 * draw(st.integers(0, 2)))
        extent = strides[-1] * dim
    swizzle = draw(st.sampled_from(sorted(SPANS)))
    chunks = draw(st.integers(1, (SPANS[swizzle] or 64) // 16))
    box = [chunks * 16 // size, *[draw(st.integers(1, 5)) for _ in range(rank - 1)]]
    fields = {
        "dtype": dtype,
        "address": BASE + 16 * draw(st.integers(0, 3)),
        "dims": tuple(dims),
        "strides": tuple(strides),
        "box": tuple(box),
        "element_strides": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "swizzle": swizzle,
    }
    coords = [draw(st.integers(-b - 1, d + 1)) for b, d in zip(box, dims, strict=True)]
    coords[0] = coords[0] * size // 16 * 16 // size  # a box starts at whole chunks
    return fields, tuple(coords), 128 * draw(st.integers(0, 16))


def memory_for(fields: dict[str, Any]) -> np.ndarray:
    extent = fields["dims"][-1] * fields["strides"][-1] if fields["strides"] else 512
    return RNG.integers(0, 256, extent + 64, dtype=np.uint8)


@settings(max_examples=150, deadline=None)
@given(case=box_copies())
def test_load_store_and_plan(case: tuple[dict[str, Any], tuple[int, ...], int]) -> None:
    fields, coords, shared_address = case
    tensor_map, memory = tm.decode_tensor_map(encode(**fields)), memory_for(fields)
    expected = expected_copy(fields, coords, memory, shared_address)
    shared = np.full(1 << 17, 0xEE, dtype=np.uint8)
    box = tm.gather_box(tensor_map, coords, memory, BASE)
    tm.store_shared_box(tensor_map, shared, shared_address, box)

    assert all(shared[at : at + len(value)].tobytes() == value for at, value in expected.items())
    assert (shared != 0xEE).sum() <= sum(map(len, expected.values())) == tensor_map.transaction_bytes
    np.testing.assert_array_equal(tm.load_shared_box(tensor_map, shared, shared_address), box)

    plan = tm.box_copy_plan(tensor_map, coords, shared_address)
    assert set((plan.shared_offset + shared_address).reshape(-1).tolist()) == set(expected)
    for target, address, valid in zip(
        (plan.shared_offset + shared_address).flat, plan.global_address.flat, plan.valid.flat, strict=True
    ):
        if valid:
            assert expected[int(target)] == memory[address - BASE : address - BASE + plan.unit_bytes].tobytes()

    check_store(tensor_map, coords, memory, plan)


def check_store(tensor_map: tm.TensorMap, coords: tuple[int, ...], memory: np.ndarray, plan: tm.BoxPlan) -> None:
    """A store writes the chunks of 16 bytes with an in-bounds element, and nothing else; so says valid_byte_range."""
    box = RNG.integers(0, 256, (tensor_map.rows, tensor_map.inner_bytes), dtype=np.uint8)
    wanted = memory.copy()
    per_chunk = 16 // plan.unit_bytes
    chunks = plan.valid.reshape(len(plan.valid), -1, per_chunk).any(axis=2)
    written = np.repeat(chunks, per_chunk, axis=1)
    for octet in range(plan.unit_bytes):
        wanted[plan.global_address[written] - BASE + octet] = box[:, octet :: plan.unit_bytes][written]
    tm.scatter_box(tensor_map, coords, memory, BASE, box)
    np.testing.assert_array_equal(memory, wanted)
    for store, touched in ((False, plan.global_address[plan.valid]), (True, plan.global_address[written])):
        span = (int(touched.min()), int(touched.max()) + plan.unit_bytes) if touched.size else None
        assert tm.valid_byte_range(tensor_map, coords, store) == span


def test_out_of_bounds_fill_with_nan() -> None:
    memory = np.zeros(4096, dtype=np.uint8)
    tensor_map = tm.decode_tensor_map(encode(oob_fill="nan"))
    box = tm.gather_box(tensor_map, (32, 30), memory, BASE).view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.isnan(box[:, 32:]).all()
    assert np.isnan(box[2:]).all()
    assert (box[:2, :32] == 0).all()


@pytest.mark.parametrize("coords", [(1, 0), (-4, 0), (100, 0)])
def test_a_box_starts_at_a_multiple_of_16_bytes(coords: tuple[int, int]) -> None:
    tensor_map = tm.decode_tensor_map(encode())
    with pytest.raises(ValueError, match="bfloat16 needs a multiple of 8 elements: a box must start"):
        tm.check_coordinates(tensor_map, coords)


def test_a_map_that_names_more_than_the_buffer_faults() -> None:
    tensor_map = tm.decode_tensor_map(encode())
    with pytest.raises(IndexError, match="outside the buffer"):
        tm.gather_box(tensor_map, (0, 30), np.zeros(64 * 32 * 2 - 1, dtype=np.uint8), BASE)
    with pytest.raises(IndexError, match="outside the buffer"):
        tm.scatter_box(tensor_map, (0, 0), np.zeros(4096, np.uint8), BASE + 16, np.zeros((8, 128), np.uint8))


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        (64, ValueError, "multiple of 128"),
        ((1 << 12) - 128, IndexError, "shared memory ends"),
        (-128, IndexError, "ends at"),
    ],
)
def test_shared_address_is_checked(address: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tm.load_shared_box(tm.decode_tensor_map(encode()), np.zeros(1 << 12, np.uint8), address)


def test_coordinates_must_match_the_rank() -> None:
    with pytest.raises(ValueError, match="has rank 2; pass 2"):
        tm.gather_box(tm.decode_tensor_map(encode()), (0,), np.zeros(4096, np.uint8), BASE)


# conversions on load


def test_tf32_loads_round_and_ftz_loads_flush_nothing() -> None:
    values = np.array([1 + 2**-11 + 2**-20, 1e-40, -1e-40, 2.0], dtype=np.float32)
    memory = np.zeros(128, dtype=np.uint8)
    memory[:16] = values.view(np.uint8)
    loaded = {}
    for dtype in ("float32", "float32_ftz", "tfloat32", "tfloat32_ftz"):
        tensor_map = tm.decode_tensor_map(
            tm.encode_tensor_map(dtype, BASE, dims=(4,), strides=(), box=(4,), swizzle="none")
        )
        loaded[dtype] = tm.gather_box(tensor_map, (0,), memory, BASE).view(np.uint32)[0].tolist()
    assert loaded["float32"] == values.view(np.uint32).tolist()
    assert loaded["float32_ftz"] == values.view(np.uint32).tolist()
    assert loaded["tfloat32"] == loaded["tfloat32_ftz"] == [0x3F802000, 0x00012000, 0x80012000, 0x40000000]


# packed types


def test_packed_align8_copies_bytes_and_counts_them() -> None:
    memory = RNG.integers(0, 256, (8, 64), dtype=np.uint8)
    tensor_map = tm.decode_tensor_map(
        tm.encode_tensor_map("16u4_align8b", BASE, dims=(128, 8), strides=(64,), box=(64, 4), swizzle="none")
    )
    assert tensor_map.transaction_bytes == 4 * 32
    box = tm.gather_box(tensor_map, (64, 2), memory.reshape(-1), BASE)
    np.testing.assert_array_equal(box, memory[2:6, 32:])
    with pytest.raises(ValueError, match="16u4_align8b needs a multiple of 32 elements"):
        tm.gather_box(tensor_map, (1, 0), memory.reshape(-1), BASE)


def test_packed_align16_pads_every_cell() -> None:
    memory = RNG.integers(0, 256, (8, 128), dtype=np.uint8)
    tensor_map = tm.decode_tensor_map(
        tm.encode_tensor_map("16u4_align16b", BASE, dims=(256, 8), strides=(128,), box=(128, 8), swizzle="128b")
    )
    shared = np.full(2048, 0xEE, dtype=np.uint8)
    box = tm.gather_box(tensor_map, (128, 0), memory.reshape(-1), BASE)
    tm.store_shared_box(tensor_map, shared, 1024, box)
    assert tensor_map.transaction_bytes == 8 * 64
    for row, cell in product(range(8), range(8)):
        at = 1024 + 128 * row + 16 * (cell ^ row)
        np.testing.assert_array_equal(shared[at : at + 8], memory[row, 64 + 8 * cell : 72 + 8 * cell])
        assert (shared[at + 8 : at + 16] == 0xFF).all()  # nothing that a kernel could take for data
    np.testing.assert_array_equal(tm.load_shared_box(tensor_map, shared, 1024), box)
    plan = tm.box_copy_plan(tensor_map, (128, 0), 1024)
    np.testing.assert_array_equal(shared[1024 + plan.shared_offset], memory[:, 64:])
    with pytest.raises(ValueError, match="multiple of 128 elements"):
        tm.gather_box(tensor_map, (64, 0), memory.reshape(-1), BASE)
