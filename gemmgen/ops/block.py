"""The parameter block of a prepared launch: packed once, afterwards only its addresses and scalars are exchanged.

Where the address sits in an encoded tensor map is found by encoding twice and comparing, not assumed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemmgen.ir import AnyPlan, Param
from gemmgen.runtime.arguments import TENSOR_MAP_BYTES, Encoder, Problem, TensorView, pack

FIELD_BYTES = {"tensor_map": TENSOR_MAP_BYTES, "pointer": 8, "stride": 8, "workspace": 8, "scalar": 4, "extent": 4}
_PROBES = (0x7F5A_3C96_E1C0, 0x00A5_C369_1E20)
"""Two addresses aligned to 32 bytes, the most that a map asks for, that differ in every bit above."""

Block = Callable[[Sequence[int], Sequence[float]], bytes]
"""Bytes of the parameter struct from addresses and scalars."""


def whole_block(plan: AnyPlan, problem: Problem, encode: Encoder) -> bytes:
    """The parameter struct with the padding that its alignment adds at the end."""
    block = pack(plan, problem, encode)
    return block + bytes(-len(block) % (64 if plan.tensor_maps else 8))


def block_builder(
    plan: AnyPlan, tensors: Sequence[str], scalars: Sequence[str], problem: Problem, encode: Encoder
) -> Block:
    """A fast builder for calls whose metadata equals ``problem``'s; packs anew where patching is not proven right.

    ``tensors`` (and behind them what the workspace has) and ``scalars`` are named in the order in which the builder is
    given addresses and values.
    """
    slots = None if 0 in problem.sizes.values() else _address_slots(plan, tensors, problem, encode)
    if slots is None:  # with an extent of 0, maps describe the output's memory and not their own
        return _repacking(plan, tensors, scalars, problem, encode)
    return PatchedBlock(whole_block(plan, problem, encode), slots, _scalar_slots(plan, scalars))


def _repacking(
    plan: AnyPlan, tensors: Sequence[str], scalars: Sequence[str], problem: Problem, encode: Encoder
) -> Block:
    def build(addresses: Sequence[int], values: Sequence[float]) -> bytes:
        moved = _moved(problem, dict(zip(tensors, addresses, strict=True)))
        return whole_block(plan, replace(moved, scalars=dict(zip(scalars, values, strict=True))), encode)

    return build


def _moved(problem: Problem, addresses: Mapping[str, int]) -> Problem:
    """The same problem with its tensors and its workspace elsewhere."""
    views = {name: TensorView(addresses[name], view.shape, view.strides) for name, view in problem.tensors.items()}
    return replace(problem, tensors=views, workspace={name: addresses[name] for name in problem.workspace})


class PatchedBlock:
    """One ``struct`` call over fixed bytes and the exchanged fields between them.

    ``base`` is a whole block; ``addresses`` and ``scalars`` are offset in it and index of what lies there.
    """

    def __init__(self, base: bytes, addresses: Sequence[tuple[int, int]], scalars: Sequence[tuple[int, int]]) -> None:
        self.base = base
        self.addresses, self.scalars = tuple(addresses), tuple(scalars)
        layout = ["<"]
        self._fields: list[bytes | None] = []
        self._from_addresses: list[tuple[int, int]] = []
        self._from_scalars: list[tuple[int, int]] = []
        position = 0
        exchanged = [(at, "Q", each) for at, each in addresses] + [(at, "f", each) for at, each in scalars]
        for offset, code, index in sorted(exchanged):
            if offset > position:
                layout.append(f"{offset - position}s")
                self._fields.append(base[position:offset])
            layout.append(code)
            (self._from_addresses if code == "Q" else self._from_scalars).append((len(self._fields), index))
            self._fields.append(None)
            position = offset + struct.calcsize(f"<{code}")
        layout.append(f"{len(base) - position}s")
        self._fields.append(base[position:])
        self._pack = struct.Struct("".join(layout)).pack

    def __call__(self, addresses: Sequence[int], values: Sequence[float]) -> bytes:
        filled: list[Any] = self._fields.copy()
        for at, index in self._from_addresses:
            filled[at] = addresses[index]
        for at, index in self._from_scalars:
            filled[at] = values[index]
        return self._pack(*filled)


def _fields(plan: AnyPlan) -> Iterator[tuple[int, Param]]:
    offset = 0
    for param in plan.params:
        yield offset, param
        offset += FIELD_BYTES[param.kind]


def _scalar_slots(plan: AnyPlan, scalars: Sequence[str]) -> list[tuple[int, int]]:
    return [(at, scalars.index(str(param.operand))) for at, param in _fields(plan) if param.kind == "scalar"]


def _address_slots(
    plan: AnyPlan, tensors: Sequence[str], problem: Problem, encode: Encoder
) -> list[tuple[int, int]] | None:
    """Offset of every address in the block, or None when moving the tensors changes any other byte of a map."""
    first, second = (_image(plan, problem, encode, address) for address in _PROBES)
    slots = []
    for offset, param in _fields(plan):
        if param.kind == "tensor_map":
            end = offset + TENSOR_MAP_BYTES
            at = _address_in_map(first[offset:end], second[offset:end])
            if at is None:
                return None
            slots.append((offset + at, tensors.index(str(param.operand))))
        elif param.kind == "pointer":
            slots.append((offset, tensors.index(str(param.operand))))
        elif param.kind == "workspace" and param.name in tensors:
            slots.append((offset, tensors.index(param.name)))
    return slots


def _image(plan: AnyPlan, problem: Problem, encode: Encoder, address: int) -> bytes:
    """The block as if everything lay at one address."""
    names = [*problem.tensors, *problem.workspace]
    return whole_block(plan, _moved(problem, dict.fromkeys(names, address)), encode)


def _address_in_map(first: bytes, second: bytes) -> int | None:
    at = first.find(struct.pack("<Q", _PROBES[0]))
    if at < 0 or second != first[:at] + struct.pack("<Q", _PROBES[1]) + first[at + 8 :]:
        return None
    return at
