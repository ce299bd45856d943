"""What a warp keeps beside its registers: bound blocks of code, what it spins at, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .blocks import BlockCode
from .registry import Call
from .types import Array


@dataclass
class Block:
    """Straight-line code bound to a warp, and the control call that ends it."""

    run: Call
    code: BlockCode
    control: Callable[[], int]
    count: int


@dataclass
class Spin:
    """The last failed try_wait: seen again with no side effect between, it is a pure spin and may sleep."""

    key: tuple[int, int, int] = (-1, -1, -1)
    effects: int = -1


@dataclass
class Outstanding:
    """Asynchronous work this warp has issued and not yet waited for."""

    wgmma_open: list[Any] = field(default_factory=list)
    wgmma_groups: list[list[Any]] = field(default_factory=list)
    bulk_open: dict[int, list[Any]] = field(default_factory=dict)
    bulk_groups: dict[int, list[list[Any]]] = field(default_factory=dict)
    map_uses: dict[int, list[Any]] = field(default_factory=dict)  # loads by maps in global memory, not yet committed
    copy_open: list[tuple[Any, Array]] = field(default_factory=list)
    copy_groups: list[list[tuple[Any, Array]]] = field(default_factory=list)


def in_turn(before: Call, call: Call) -> Call:
    """Both calls as one, which returns what the second does."""

    def both() -> Any:
        before()
        return call()

    return both
