"""Tokens: what registers hold while an asynchronous instruction has not delivered yet, and their replacement by values.
Copies of a token (mov, packs, phi moves) are found wherever they went; it knows register files, no instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .types import Array, Instr, Reg, Vec

if TYPE_CHECKING:
    from .program import Program
    from .warp import Warp

_TOKEN = np.uint32(0x7F800000)  # a signalling NaN: copies keep it, arithmetic does not
_TOKEN_MASK = np.uint32(0xFFC00000)
_PAYLOAD = np.uint32(0x3FFFFF)
_REGISTER_BITS = 7
_REGISTER_MASK = np.uint32((1 << _REGISTER_BITS) - 1)
_NUMBERS = _TOKEN + np.arange(1 << _REGISTER_BITS, dtype=np.uint32)
_SERIALS = 1 << 22 - _REGISTER_BITS


def next_serial(warp: Warp) -> int:
    """A number for the next operation in flight; never 0, which would be an infinity."""
    warp.token_serial = warp.token_serial % (_SERIALS - 1) + 1
    return warp.token_serial


def tokens(serial: int, count: int) -> Array:
    """[count, 1] register contents that stand for the results of an operation."""
    return (_NUMBERS[:count] + np.uint32(serial << _REGISTER_BITS))[:, None]


def holds_token(values: Array) -> Array:
    """Which words are tokens (or infinities and NaNs that look like one)."""
    result: Array = (values & _TOKEN_MASK) == _TOKEN
    return result


def serial_of(value: int) -> int:
    return (value & int(_PAYLOAD)) >> _REGISTER_BITS


def resolve(warp: Warp, results: dict[int, Array], wanted: dict[int, int]) -> None:
    """Replace the tokens of finished operations in every register; counts each one found off `wanted`."""
    narrow, wide = _carriers(warp.cta.program)
    _resolve_file(warp.registers.files["32"], narrow, results, wanted)
    if wide.size:
        pairs = warp.registers.files["64"].view(np.uint32)
        for half in (0, 1):
            _resolve_file(pairs[:, half::2], wide, results, wanted)


def _resolve_file(file: Array, carriers: Array, results: dict[int, Array], wanted: dict[int, int]) -> None:
    held = file.take(carriers, 0)
    places, lanes = np.nonzero(holds_token(held))
    if not places.size:
        return
    values, rows = held[places, lanes], carriers[places]
    serials = (values & _PAYLOAD) >> np.uint32(_REGISTER_BITS)
    for serial, result in results.items():
        chosen = serials == serial
        count = int(np.count_nonzero(chosen))
        if not count:
            continue
        wanted[serial] -= count
        if count == chosen.size:
            file[rows, lanes] = result[values & _REGISTER_MASK, lanes]
        else:
            file[rows[chosen], lanes[chosen]] = result[values[chosen] & _REGISTER_MASK, lanes[chosen]]


def _carriers(program: Program) -> tuple[Array, Array]:
    """Rows of 32- and 64-bit registers that can hold tokens: results in flight, and moves and selects of them."""
    found = program.shared.get("carriers")
    if found is None:
        sets = _carrier_sets(program.entry.instrs)
        found = program.shared["carriers"] = tuple(np.array(sorted(sets[kind]), np.int64) for kind in ("32", "64"))
    return found[0], found[1]


def _carrier_sets(instrs: list[Instr]) -> dict[str, set[int]]:
    sets: dict[str, set[int]] = {"32": set(), "64": set()}
    moves = []
    for instr in instrs:
        if instr.parts[:2] in (("wgmma", "mma_async"), ("tcgen05", "ld")):
            sets["32"].update(register.index for register in _registers(instr.operands[0]))
        elif instr.base in ("mov", "selp", "slct"):
            moves.append(([r for op in instr.operands[1:] for r in _registers(op)], _registers(instr.operands[0])))
    grown = True
    while grown:
        before = sum(map(len, sets.values()))
        for sources, targets in moves:
            if any(r.index in sets.get(r.kind, ()) for r in sources):
                for target in targets:
                    if target.kind in sets:
                        sets[target.kind].add(target.index)
        grown = sum(map(len, sets.values())) > before
    return sets


def _registers(operand: Any) -> list[Reg]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    return [item for item in items if isinstance(item, Reg)]
