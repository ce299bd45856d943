"""What the parser makes of a PTX file: entries, variables, scopes and source places.
Plain data; reading text is parse.py's."""

from __future__ import annotations

from dataclasses import dataclass, field

from .types import Instr, Reg


@dataclass
class Variable:
    """A module or function variable: parameter, shared array, global, constant or local depot."""

    name: str
    space: str
    nbytes: int
    align: int
    offset: int = 0
    init: bytes = b""
    extern: bool = False


@dataclass
class Scope:
    """Registers and labels of one `{ }`; names are looked up outwards."""

    parent: Scope | None
    registers: dict[str, Reg] = field(default_factory=dict)
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass
class Entry:
    """One kernel: its instructions in order and everything they name."""

    name: str
    params: list[Variable] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    instrs: list[Instr] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"p": 0, "16": 0, "32": 0, "64": 0, "128": 0})
    targets: set[int] = field(default_factory=set)
    shared_bytes: int = 0
    local_bytes: int = 0


@dataclass
class Loc:
    """A `.loc` line; inlined_at points to the `.loc` of the call site."""

    ptx_line: int
    file: int
    line: int
    column: int
    inlined_at: tuple[int, int, int] | None


@dataclass
class PtxText:
    """The whole parsed file."""

    entries: dict[str, Entry] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    locs: list[Loc] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    target: str = ""
