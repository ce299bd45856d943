"""The parameter block of a prepared launch: packed once, afterwards only its addresses and scalars are exchanged.

Where the address sits in an encoded tensor map is found by encoding twice and comparing, not assumed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from gemmgen.ir import Param, Plan
from gemmgen.runtime.arguments import TENSOR_MAP_BYTES, Encoder, Problem, TensorView, pack

FIELD_BYTES = {"tensor_map": TENSOR_MAP_BYTES, "pointer": 8, "stride": 8, "scalar": 4, "extent": 4}
_PROBES = (0x7F5A_3C96_E1D0, 0x0000_0001_0000, 0x1234_5678_9AB0)

Block = Callable[[Sequence[int], Sequence[float]], bytes]
"""Bytes of the parameter struct from addresses and scalars, both in the order of the plan's operands."""


def whole_block(plan: Plan, problem: Problem, encode: Encoder) -> bytes:
    """The parameter struct with the padding that its alignment adds at the end."""
    block = pack(plan, problem, encode)
    return block + bytes(-len(block) % (64 if plan.tensor_maps else 8))


def block_builder(plan: Plan, problem: Problem, encode: Encoder) -> Block:
    """A fast builder for calls whose metadata equals ``problem``'s; falls back to packing anew."""
    return _patching(plan, problem, encode) or _repacking(plan, problem, encode)


def _repacking(plan: Plan, problem: Problem, encode: Encoder) -> Block:
    def build(addresses: Sequence[int], scalars: Sequence[float]) -> bytes:
        return whole_block(plan, _moved(plan, problem, addresses, scalars), encode)

    return build


def _moved(plan: Plan, problem: Problem, addresses: Sequence[int], scalars: Sequence[float]) -> Problem:
    tensors = [operand.name for operand in plan.operands if not operand.is_scalar]
    names = [operand.name for operand in plan.operands if operand.is_scalar]
    views = {
        name: TensorView(address, problem.tensors[name].shape, problem.tensors[name].strides)
        for name, address in zip(tensors, addresses, strict=True)
    }
    return Problem(problem.sizes, views, dict(zip(names, scalars, strict=True)))


def _patching(plan: Plan, problem: Problem, encode: Encoder) -> Block | None:
    """A ``struct`` format of fixed bytes between the exchanged fields, if the encoder proves patchable."""
    if 0 in problem.sizes.values():
        return None  # the maps then describe the output's memory, not their own
    slots = _address_slots(plan, problem, encode)
    if slots is None:
        return None
    scalars = [operand.name for operand in plan.operands if operand.is_scalar]
    base = whole_block(plan, problem, encode)
    layout, order = ["<"], list[bytes | tuple[str, int]]()
    position = 0
    for offset, code, index in sorted(slots + _scalar_slots(plan, scalars)):
        if offset > position:
            layout.append(f"{offset - position}s")
            order.append(base[position:offset])
        layout.append(code)
        order.append((code, index))
        position = offset + struct.calcsize(f"<{code}")
    if position < len(base):
        layout.append(f"{len(base) - position}s")
        order.append(base[position:])
    return _packer(struct.Struct("".join(layout)).pack, order)


def _packer(pack_block: Callable[..., bytes], order: Sequence[bytes | tuple[str, int]]) -> Block:
    values: list[object] = [entry if isinstance(entry, bytes) else None for entry in order]
    from_addresses = [(at, e[1]) for at, e in enumerate(order) if isinstance(e, tuple) and e[0] == "Q"]
    from_scalars = [(at, e[1]) for at, e in enumerate(order) if isinstance(e, tuple) and e[0] == "f"]

    def build(addresses: Sequence[int], scalars: Sequence[float]) -> bytes:
        fields = values.copy()
        for at, index in from_addresses:
            fields[at] = addresses[index]
        for at, index in from_scalars:
            fields[at] = scalars[index]
        return pack_block(*fields)

    return build


def _fields(plan: Plan) -> Iterator[tuple[int, Param]]:
    offset = 0
    for param in plan.params:
        yield offset, param
        offset += FIELD_BYTES[param.kind]


def _scalar_slots(plan: Plan, scalars: Sequence[str]) -> list[tuple[int, str, int]]:
    return [(at, "f", scalars.index(str(param.operand))) for at, param in _fields(plan) if param.kind == "scalar"]


def _address_slots(plan: Plan, problem: Problem, encode: Encoder) -> list[tuple[int, str, int]] | None:
    """Offset of every address in the block, or None when moving the tensors changes any other byte."""
    tensors = [operand.name for operand in plan.operands if not operand.is_scalar]
    offsets = [_map_address_offset(plan, problem, encode, offset, param) for offset, param in _fields(plan)]
    slots = []
    for (_, param), at in zip(_fields(plan), offsets, strict=True):
        if param.kind not in ("tensor_map", "pointer"):
            continue
        if at is None:
            return None
        slots.append((at, "Q", tensors.index(str(param.operand))))
    return slots


def _map_address_offset(plan: Plan, problem: Problem, encode: Encoder, offset: int, param: Param) -> int | None:
    if param.kind != "tensor_map":
        return offset
    images = [_image(plan, problem, encode, offset, address) for address in _PROBES]
    at = images[0].find(struct.pack("<Q", _PROBES[0]))
    if at < 0 or any(image != _with_address(images[0], at, a) for image, a in zip(images, _PROBES, strict=True)):
        return None
    return offset + at


def _image(plan: Plan, problem: Problem, encode: Encoder, offset: int, address: int) -> bytes:
    views: Mapping[str, TensorView] = {
        name: TensorView(address, view.shape, view.strides) for name, view in problem.tensors.items()
    }
    block = pack(plan, Problem(problem.sizes, views, problem.scalars), encode)
    return block[offset : offset + TENSOR_MAP_BYTES]


def _with_address(image: bytes, at: int, address: int) -> bytes:
    return image[:at] + struct.pack("<Q", address) + image[at + 8 :]
