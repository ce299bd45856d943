"""Tensor maps as 128-byte values of our own encoding: fields, legality rules, field replacement.

The rules are those of cuTensorMapEncodeTiled; this module may not know of memory contents or the interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from gemmgen.sim.swizzle import SPAN_BYTES, SmemSwizzle

T = TypeVar("T")

TENSOR_MAP_BYTES = 128
MAX_RANK = 5
CELL_ELEMENTS = 16  # packed sub-byte types come in cells of 16 elements
_MAGIC = 0x50414D54  # "TMAP"
_LAYOUT = struct.Struct("<I6B6xQ5Q4Q5H5B")


@dataclass(frozen=True, eq=False)
class ElementType:
    """One element type of a tensor map: bits in global memory, bytes a cell of 16 elements takes in shared memory."""

    name: str
    code: int  # number in the driver's enumeration and in tensormap.replace
    bits: int
    kind: str  # unsigned, signed, float, packed
    address_alignment: int = 16
    inner_multiple: int = 1  # what the innermost dimension must be a multiple of
    fixed_inner_box: int = 0  # the only legal inner box, 0 when free
    padded_cell: bool = False  # 16 elements are padded to 16 bytes in shared memory

    @property
    def shared_bits(self) -> int:
        return 8 if self.padded_cell else self.bits


_TYPES = (
    ElementType("uint8", 0, 8, "unsigned"),
    ElementType("uint16", 1, 16, "unsigned"),
    ElementType("uint32", 2, 32, "unsigned"),
    ElementType("int32", 3, 32, "signed"),
    ElementType("uint64", 4, 64, "unsigned"),
    ElementType("int64", 5, 64, "signed"),
    ElementType("float16", 6, 16, "float"),
    ElementType("float32", 7, 32, "float"),
    ElementType("float64", 8, 64, "float"),
    ElementType("bfloat16", 9, 16, "float"),
    ElementType("float32_ftz", 10, 32, "float"),
    ElementType("tfloat32", 11, 32, "float"),
    ElementType("tfloat32_ftz", 12, 32, "float"),
    ElementType("16u4_align8b", 13, 4, "packed", inner_multiple=2),
    ElementType("16u4_align16b", 14, 4, "packed", 32, 128, 128, padded_cell=True),
    ElementType("16u6_align16b", 15, 6, "packed", 32, 128, 128, padded_cell=True),
)
ELEMENT_TYPES = {element.name: element for element in _TYPES}
INTERLEAVES = ("none", "16b", "32b")
OOB_FILLS = ("zero", "nan")
SWIZZLES = {"none": SmemSwizzle.NONE, "32b": SmemSwizzle.B32, "64b": SmemSwizzle.B64, "128b": SmemSwizzle.B128}
_PTX_ELEMENT_ORDER = {8: 10, 9: 8, 10: 9}  # tensormap.replace numbers f32.ftz, f64, bf16 as 8, 9, 10


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map, innermost dimension first: dims, box, element_strides in elements, outer strides in bytes."""

    element: ElementType
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: SmemSwizzle
    interleave: int
    oob_nan: bool

    def __hash__(self) -> int:
        return hash((self.address, self.dims, self.box))  # maps are cache keys: a few fields hash faster than all

    @property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def copied(self) -> tuple[int, ...]:
        """Elements copied along each dimension: ceil(box / element stride), the innermost stride being ignored."""
        return (self.box[0], *(-(-b // s) for b, s in zip(self.box[1:], self.element_strides[1:], strict=True)))

    @cached_property
    def inner_bytes(self) -> int:
        """Bytes of one box row in global memory (packed)."""
        return self.box[0] * self.element.bits // 8

    @cached_property
    def shared_inner_bytes(self) -> int:
        """Bytes of one box row in shared memory."""
        return self.box[0] * self.element.shared_bits // 8

    @cached_property
    def rows(self) -> int:
        rows = 1
        for count in self.copied[1:]:
            rows *= count
        return rows

    @cached_property
    def transaction_bytes(self) -> int:
        """Bytes a load of one box adds to its mbarrier; sub-byte types count packed bytes."""
        return self.rows * self.inner_bytes


def encode_tensor_map(
    dtype: str,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    swizzle: str = "none",
    interleave: str = "none",
    oob_fill: str = "zero",
) -> bytes:
    """128 bytes of a tensor map, after the checks the driver makes; ValueError names value, rule and fix."""
    tensor_map = TensorMap(
        element=_choice("dtype", dtype, ELEMENT_TYPES),
        address=address,
        dims=tuple(dims),
        strides=tuple(strides),
        box=tuple(box),
        element_strides=tuple(element_strides or [1] * len(dims)),
        swizzle=_choice("swizzle", swizzle, SWIZZLES),
        interleave=_choice("interleave", interleave, {name: i for i, name in enumerate(INTERLEAVES)}),
        oob_nan=_choice("oob_fill", oob_fill, {"zero": False, "nan": True}),
    )
    check_tensor_map(tensor_map)
    return pack_tensor_map(tensor_map)


def _choice(name: str, value: str, table: dict[str, T]) -> T:
    if value not in table:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(table)}")
    return table[value]


def pack_tensor_map(m: TensorMap) -> bytes:
    """128 bytes of a tensor map, unchecked; unused dimensions hold 1 and their strides 0."""
    header = (m.element.code, m.rank, int(m.swizzle), m.interleave, int(m.oob_nan), 0)
    dims = _padded(m.dims, MAX_RANK, 1) + _padded(m.strides, MAX_RANK - 1, 0)
    boxes = _padded(m.box, MAX_RANK, 1) + _padded(m.element_strides, MAX_RANK, 1)
    return _LAYOUT.pack(_MAGIC, *header, m.address, *dims, *boxes).ljust(TENSOR_MAP_BYTES, b"\0")


def _padded(values: Sequence[int], length: int, filler: int) -> tuple[int, ...]:
    return (*values, *[filler] * (length - len(values)))


@lru_cache(maxsize=1024)
def decode_tensor_map(data: bytes) -> TensorMap:
    """The checked tensor map of 128 bytes; ValueError when they are no tensor map or break a rule."""
    values = _unpack(data)
    element_code, rank, swizzle, interleave, oob_nan = values[1:6]
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"tensor map: rank is {rank}; it must be 1 to {MAX_RANK}")
    dims, strides, box, element_strides = values[8:13], values[13:17], values[17:22], values[22:27]
    decoded = TensorMap(
        element=_TYPES[element_code],
        address=values[7],
        dims=dims[:rank],
        strides=strides[: rank - 1],
        box=box[:rank],
        element_strides=element_strides[:rank],
        swizzle=SmemSwizzle(swizzle),
        interleave=interleave,
        oob_nan=bool(oob_nan),
    )
    check_tensor_map(decoded)
    return decoded


def _unpack(data: bytes) -> tuple[int, ...]:
    values = _LAYOUT.unpack_from(data) if len(data) == TENSOR_MAP_BYTES else (0,)
    if values[0] != _MAGIC:
        raise ValueError(
            f"these {len(data)} bytes are no tensor map (they start with {data[:4].hex()}); "
            "pass the 128 bytes of encode_tensor_map, or of a copy of them"
        )
    return values


_SCALAR_FIELDS = {
    "elemtype": 1,
    "rank": 2,
    "swizzle_mode": 3,
    "interleave_layout": 4,
    "fill_mode": 5,
    "global_address": 7,
}
_VECTOR_FIELDS = {"global_dim": (8, 5), "global_stride": (13, 4), "box_dim": (17, 5), "element_stride": (22, 5)}
_FIELD_LIMITS = {"elemtype": len(_TYPES), "rank": MAX_RANK, "swizzle_mode": 4, "interleave_layout": 3, "fill_mode": 2}


def replace_field(data: bytes, field: str, index: int | None, value: int) -> bytes:
    """tensormap.replace: the map with one field changed, numbered as in PTX (rank is the rank minus one).

    index is the ordinal of a vector field, None for a scalar one. Rules are checked when the map is next used.
    """
    values = list(_unpack(data))
    position = _field_position(field, index)
    if not 0 <= value < _FIELD_LIMITS.get(field, 1 << 64):
        raise ValueError(
            f"tensormap.replace {field}: value {value} is out of range; it must be below {_FIELD_LIMITS[field]}"
        )
    if field == "rank":
        value += 1
    elif field == "elemtype":
        value = _PTX_ELEMENT_ORDER.get(value, value)
    values[position] = value
    try:
        return _LAYOUT.pack(*values).ljust(TENSOR_MAP_BYTES, b"\0")
    except struct.error as error:
        raise ValueError(f"tensormap.replace {field}: value {value} does not fit the field ({error})") from error


def _field_position(field: str, index: int | None) -> int:
    if field in _SCALAR_FIELDS:
        if index is not None:
            raise ValueError(f"tensormap.replace {field}: takes no ordinal, got {index}")
        return _SCALAR_FIELDS[field]
    if field not in _VECTOR_FIELDS:
        raise ValueError(
            f"tensormap.replace: unknown field {field!r}; one of {', '.join((*_SCALAR_FIELDS, *_VECTOR_FIELDS))}"
        )
    first, length = _VECTOR_FIELDS[field]
    if index is None or not 0 <= index < length:
        raise ValueError(f"tensormap.replace {field}: ordinal is {index}; it must be 0 to {length - 1}")
    return first + index


def check_tensor_map(m: TensorMap) -> None:
    """Raise ValueError for the first rule of cuTensorMapEncodeTiled that the map breaks."""
    _check_lengths(m)
    _check_address_and_strides(m)
    _check_dims(m)
    _check_box(m)
    _check_modes(m)


def _check_lengths(m: TensorMap) -> None:
    if not 1 <= m.rank <= MAX_RANK:
        raise ValueError(f"dims: there are {m.rank}; a tensor map has 1 to {MAX_RANK}; fold some dimensions")
    expected = {"strides": m.rank - 1, "box": m.rank, "element_strides": m.rank}
    for name, length in expected.items():
        if len(getattr(m, name)) != length:
            raise ValueError(
                f"{name}: got {len(getattr(m, name))} values for rank {m.rank}; pass {length}"
                + (" (the innermost dimension has no stride)" if name == "strides" else "")
            )


def _check_address_and_strides(m: TensorMap) -> None:
    alignment = max(m.element.address_alignment, 32 if INTERLEAVES[m.interleave] == "32b" else 16)
    if m.address % alignment:
        raise ValueError(
            f"address: {m.address:#x} is not a multiple of {alignment} bytes; TMA needs it for {m.element.name}; "
            "pass an aligned or contiguous tensor"
        )
    for i, stride in enumerate(m.strides):
        if stride % alignment or not 0 <= stride < 1 << 40:
            raise ValueError(
                f"strides[{i}]: {stride} bytes between elements of dimension {i + 1}; TMA needs a multiple of "
                f"{alignment} bytes below 2^40; pad the row to {-(-stride // alignment) * alignment} bytes"
            )


def _check_dims(m: TensorMap) -> None:
    for i, dim in enumerate(m.dims):
        if not 1 <= dim <= 1 << 32:
            raise ValueError(f"dims[{i}]: {dim} elements; a dimension has 1 to 2^32; skip the copy of an empty tensor")
    if m.dims[0] % m.element.inner_multiple:
        raise ValueError(
            f"dims[0]: {m.dims[0]} elements of {m.element.name}; it must be a multiple of {m.element.inner_multiple}; "
            "pad the rows"
        )


def _check_box(m: TensorMap) -> None:
    for i, (box, step) in enumerate(zip(m.box, m.element_strides, strict=True)):
        if not 1 <= box <= 256:
            raise ValueError(f"box[{i}]: {box} elements; a box has 1 to 256 along each dimension; issue several copies")
        if not 1 <= step <= 8:
            raise ValueError(f"element_strides[{i}]: {step}; it must be 1 to 8; use the tensor's own stride instead")
    if m.element.fixed_inner_box and m.box[0] != m.element.fixed_inner_box:
        raise ValueError(f"box[0]: {m.box[0]} elements; {m.element.name} needs {m.element.fixed_inner_box}")
    if m.interleave == 0 and (m.box[0] * m.element.bits) % 128:
        raise ValueError(
            f"box[0]: {m.box[0]} elements of {m.element.name} are {m.box[0] * m.element.bits / 8:g} bytes; the inner "
            f"box must be a multiple of 16 bytes; choose a multiple of {128 // m.element.bits} elements"
        )


def _check_modes(m: TensorMap) -> None:
    if m.interleave:
        raise ValueError(
            f"interleave: {INTERLEAVES[m.interleave]} is not modelled; "
            "use none and give the 16-byte columns a dimension of their own"
        )
    span = SPAN_BYTES[m.swizzle]
    if m.swizzle is not SmemSwizzle.NONE and m.shared_inner_bytes > span:
        raise ValueError(
            f"box[0]: {m.box[0]} elements of {m.element.name} are {m.shared_inner_bytes} bytes, more than the "
            f"{span} bytes of the swizzle; choose at most {span * 8 // m.element.shared_bits} elements "
            "and issue several copies"
        )
    if m.element.padded_cell and m.swizzle not in (SmemSwizzle.NONE, SmemSwizzle.B128):
        raise ValueError(f"swizzle: {m.element.name} allows none and 128b only")
    if m.oob_nan and m.element.kind != "float":
        raise ValueError(f"oob_fill: nan needs a floating-point type, dtype is {m.element.name}; use zero")
