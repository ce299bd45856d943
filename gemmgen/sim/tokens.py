"""Tokens: what registers hold while an asynchronous instruction has not delivered yet, and their replacement by values.
Copies of a token (mov, packs, phi moves) are found wherever they went; it knows register files, no instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .types import Array

if TYPE_CHECKING:
    from .warp import Warp

_TOKEN = np.uint32(0x7F800000)  # a signalling NaN: copies keep it, arithmetic does not
_TOKEN_MASK = np.uint32(0xFFC00000)
_PAYLOAD = np.uint32(0x3FFFFF)
_REGISTER_BITS = 7
_SERIALS = 1 << 22 - _REGISTER_BITS


def next_serial(warp: Warp) -> int:
    """A number for the next operation in flight; never 0, which would be an infinity."""
    warp.token_serial = warp.token_serial % (_SERIALS - 1) + 1
    return warp.token_serial


def tokens(serial: int, count: int) -> Array:
    """[count, 1] register contents that stand for the results of an operation."""
    return (_TOKEN | np.uint32(serial << _REGISTER_BITS) | np.arange(count, dtype=np.uint32))[:, None]


def holds_token(values: Array) -> Array:
    """Which words are tokens (or infinities and NaNs that look like one)."""
    result: Array = (values & _TOKEN_MASK) == _TOKEN
    return result


def serial_of(value: int) -> int:
    return (value & int(_PAYLOAD)) >> _REGISTER_BITS


def resolve(warp: Warp, results: dict[int, Array], wanted: dict[int, int]) -> None:
    """Replace the tokens of finished operations in every register; counts each one found off `wanted`."""
    _resolve_file(warp.registers.files["32"], results, wanted)
    wide = warp.registers.files["64"].view(np.uint32)
    for half in (0, 1):
        _resolve_file(wide[:, half::2], results, wanted)


def _resolve_file(file: Array, results: dict[int, Array], wanted: dict[int, int]) -> None:
    rows, lanes = np.nonzero(holds_token(file))
    if not rows.size:
        return
    values = file[rows, lanes]
    serials = (values & _PAYLOAD) >> np.uint32(_REGISTER_BITS)
    for serial in np.unique(serials).tolist():
        if serial in results:
            chosen = serials == serial
            wanted[serial] -= int(chosen.sum())
            where = rows[chosen], lanes[chosen]
            file[where] = results[serial][values[chosen] & np.uint32(127), where[1]]
