"""A loaded PTX module: parsed entries and the way back from an instruction to the CUDA line and its spec comment.
It knows text and places; running is the GPU's business."""

from __future__ import annotations

import bisect
from functools import cached_property
from pathlib import PurePath

from .errors import Fault, Place
from .parse import Entry, Loc, PtxText, parse
from .types import Instr


class Module:
    """What sim.load returns; can be launched on any Gpu."""

    def __init__(self, text: str, source: str | None = None) -> None:
        self.parsed: PtxText = parse(text)
        self.source_lines = source.splitlines() if source else []

    @property
    def entries(self) -> dict[str, Entry]:
        return self.parsed.entries

    def entry(self, name: str) -> Entry:
        """The entry of this name."""
        if name not in self.entries:
            raise Fault(f"the module has no entry {name!r}; it has {', '.join(self.entries) or 'none'}")
        return self.entries[name]

    @cached_property
    def _loc_lines(self) -> list[int]:
        return [loc.ptx_line for loc in self.parsed.locs]

    @cached_property
    def _loc_at(self) -> dict[tuple[int, int, int], Loc]:
        return {(loc.file, loc.line, loc.column): loc for loc in self.parsed.locs}

    def place(self, instr: Instr) -> Place:
        """PTX line, CUDA line (the outermost call site when inlined) and spec comment of an instruction."""
        text = instr.text if len(instr.text) <= 100 else instr.text[:97] + "..."
        index = bisect.bisect_right(self._loc_lines, instr.line) - 1
        if index < 0:
            return Place(text, instr.line)
        loc = self.parsed.locs[index]
        outer = self._outermost(loc)
        cuda = self._line_name(loc)
        if outer is not loc:
            cuda = f"{self._line_name(outer)} via {cuda}"
        return Place(text, instr.line, cuda, self._spec(outer))

    def _outermost(self, loc: Loc) -> Loc:
        for _ in range(64):
            if loc.inlined_at is None:
                break
            file, line, column = loc.inlined_at
            parent = self._loc_at.get(loc.inlined_at)
            loc = Loc(0, file, line, column, parent.inlined_at if parent is not None and parent is not loc else None)
        return loc

    def _line_name(self, loc: Loc) -> str:
        return f"{PurePath(self.parsed.files.get(loc.file, '?')).name}:{loc.line}"

    def _spec(self, loc: Loc) -> str:
        """The nearest `// spec:` comment at or above a line of the source."""
        if not 0 < loc.line <= len(self.source_lines):
            return ""
        for line in reversed(self.source_lines[: loc.line]):
            if "// spec:" in line:
                return line.split("// spec:", 1)[1].strip()
        return ""
