"""A loaded PTX module: parsed entries and the way back from an instruction to the CUDA line and its spec comment.
It knows text and places; running is the GPU's business."""

from __future__ import annotations

import bisect
from functools import cached_property
from pathlib import PurePath
from typing import Any

from .errors import Fault, Place
from .parse import parse
from .ptx_text import Entry, Loc, PtxText
from .types import Instr


class Module:
    """What sim.load returns; can be launched on any Gpu."""

    def __init__(self, text: str, source: str | None = None) -> None:
        self.parsed: PtxText = parse(text)
        self.shared: dict[str, dict[str, Any]] = {}  # decoded and compiled code by entry
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
    def _locs_at(self) -> dict[tuple[int, int], list[int]]:
        """Where each line of a source file is named together with its call site, by index into the `.loc` lines."""
        found: dict[tuple[int, int], list[int]] = {}
        for index, loc in enumerate(self.parsed.locs):
            if loc.inlined_at is not None:
                found.setdefault((loc.file, loc.line), []).append(index)
        return found

    def place(self, instr: Instr) -> Place:
        """PTX line, CUDA line (the innermost one in the entry's own file) and spec comment of an instruction."""
        text = instr.text if len(instr.text) <= 100 else instr.text[:97] + "..."
        index = bisect.bisect_right(self._loc_lines, instr.line) - 1
        if index < 0:
            return Place(text, instr.line)
        chain = self._call_sites(index)
        own = self.parsed.locs[0].file
        written = next((loc for loc in chain if loc.file == own), None) or self._above(index, own)
        cuda = self._line_name(written)
        if written is not chain[0]:
            cuda = f"{cuda} via {self._line_name(chain[0])}"
        return Place(text, instr.line, cuda, self._spec(written))

    def _call_sites(self, index: int) -> list[Loc]:
        """A `.loc` and the calls it was inlined at, innermost first; a call is the nearest line above that names it."""
        chain = [self.parsed.locs[index]]
        while chain[-1].inlined_at is not None and len(chain) < 64:
            file, line, column = chain[-1].inlined_at
            named = [] if file == self.parsed.locs[0].file else self._locs_at.get((file, line), [])
            at = bisect.bisect_right(named, index) - 1
            outward = self.parsed.locs[named[at]].inlined_at if at >= 0 else None
            chain.append(Loc(0, file, line, column, outward))
        return chain

    def _above(self, index: int, file: int) -> Loc:
        """The nearest `.loc` of this file at or above an index."""
        return next((loc for loc in reversed(self.parsed.locs[: index + 1]) if loc.file == file), self.parsed.locs[0])

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
