"""Tensor copies that end a kernel: boxes that start inside 16 bytes, and stores at negative coordinates.

Hardware answers with an illegal instruction, which ends the process's use of the GPU: hence a module of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .case import PRELUDE, Case
from .tma import Copy, load_case, load_kernel, store_case, store_kernel

TENSOR, BOX = (104, 20), (64, 16)  # bfloat16; rows of 208 bytes, a multiple of 16


def _copy(*coords: int) -> Copy:
    return Copy("bfloat16", TENSOR, BOX, coords, "128b")


LOADS = (
    _copy(7, 1),
    _copy(100, 0),
    Copy("float32", (40, 20), (12, 9), (13, 14)),
    Copy("uint8", (304,), (256,), (8,)),
)
STORES = (_copy(7, 1), Copy("uint32", (300,), (64,), (250,)), replace(_copy(-8, -3), dims=(100, 20)))
# one coordinate at a time: whether hardware writes what is in bounds is its own affair, the simulator refuses both
DOUBTFUL = (_copy(-8, 0), _copy(0, -3))


def cases() -> Iterator[Case]:
    load_source = PRELUDE + load_kernel(1) + load_kernel(2)
    store_source = PRELUDE + store_kernel(1, "") + store_kernel(2, "")
    for number, copy in enumerate(LOADS):
        yield replace(load_case(load_source, copy, number), family="TMA traps", refused=True, traps=True)
    for number, copy in enumerate(STORES):
        yield replace(store_case(store_source, copy, number), family="TMA traps", refused=True, traps=True)
    for number, copy in enumerate(DOUBTFUL, len(STORES)):
        yield replace(store_case(store_source, copy, number), family="TMA traps", refused=True)
