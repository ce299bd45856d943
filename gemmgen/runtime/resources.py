"""What a kernel costs on the chip, read from the report that ptxas writes with `-v`.

Knows the wording of that report and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """Registers per thread, spills and stack in bytes per thread, static shared memory per CTA, size of the binary."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    cubin_bytes: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def parse_resources(log: str, cubin_bytes: int) -> dict[str, Resources]:
    """One row per kernel in a ptxas report, by entry name; spills of functions it calls are added to its own."""
    marks = list(_ENTRY.finditer(log))
    ends = [mark.start() for mark in marks[1:]] + [len(log)]
    return {
        mark["name"]: _parse_entry(log[mark.end() : end], cubin_bytes) for mark, end in zip(marks, ends, strict=True)
    }


def _parse_entry(text: str, cubin_bytes: int) -> Resources:
    frames = [tuple(map(int, match.groups())) for match in _FRAME.finditer(text)]
    stack, stores, loads = (sum(column) for column in zip(*frames, strict=True)) if frames else (0, 0, 0)
    return Resources(
        registers=_first(_REGISTERS, text),
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=stack,
        static_shared_bytes=_first(_SHARED, text),
        cubin_bytes=cubin_bytes,
    )


def _first(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0
