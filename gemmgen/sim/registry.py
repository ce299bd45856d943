"""The table from base opcode to meaning, and the reader of an instruction's modifiers.
Families register themselves here; it may not know any single instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import UnknownInstruction
from .types import TYPES, Instr, Mask

if TYPE_CHECKING:
    from .warp import Warp

Call = Callable[[], Any]
Bind = Callable[["Warp", "Mask | None"], Call]
Decoder = Callable[[Instr], Bind]

DATA, SYNC, CONTROL = "data", "sync", "control"


class Meaning(NamedTuple):
    """How an opcode runs: data calls return nothing, sync ones wait for lanes, control ones return the next pc."""

    kind: str
    decode: Decoder


_FAMILIES: dict[str, Meaning] = {}


def instruction(*opcodes: str, kind: str = DATA) -> Callable[[Decoder], Decoder]:
    """Register the decoder of one or more base opcodes (or of opcode.modifier prefixes, which win over the base)."""

    def register(decode: Decoder) -> Decoder:
        for opcode in opcodes:
            _FAMILIES[opcode] = Meaning(kind, decode)
        return decode

    return register


def meaning(instr: Instr) -> Meaning:
    """The most specific registered meaning; raises UnknownInstruction."""
    known: Meaning | None = instr.cache.get("meaning")
    if known is not None:
        return known
    for length in range(min(4, len(instr.parts)), 0, -1):
        found = _FAMILIES.get(".".join(instr.parts[:length]))
        if found is not None:
            instr.cache["meaning"] = found
            return found
    raise UnknownInstruction(f"opcode {instr.opcode!r} has no meaning in the simulator; add it to a family in sim/")


class Mods:
    """Modifiers of an instruction, consumed one by one; what is left over at the end is an error."""

    def __init__(self, instr: Instr, skip: int = 1) -> None:
        self.instr = instr
        self.left = list(instr.parts[skip:])

    def flag(self, *names: str) -> bool:
        """Remove the names that are present; true when any was."""
        found = [name for name in self.left if name in names]
        self.left = [name for name in self.left if name not in names]
        return bool(found)

    def pick(self, names: Iterable[str], default: str = "") -> str:
        """Remove and return the one of names that is present."""
        for name in self.left:
            if name in names:
                self.left.remove(name)
                return name
        return default

    def type(self) -> str:
        """Remove and return the first type modifier."""
        found = self.pick([name for name in self.left if name in TYPES])
        if not found:
            raise UnknownInstruction(f"{self.instr.opcode!r} names no type")
        return found

    def types(self) -> list[str]:
        found = [name for name in self.left if name in TYPES]
        self.left = [name for name in self.left if name not in TYPES]
        return found

    def done(self) -> None:
        if self.left:
            raise UnknownInstruction(f"{self.instr.opcode!r}: modifier .{self.left[0]} is not known to the simulator")


CACHE_HINTS = (
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::cache_hint",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "nc",
)
SCOPES = ("cta", "cluster", "gpu", "sys")
SHARED_SPACES = ("shared", "shared::cta", "shared::cluster")
SEMANTICS = ("release", "acquire", "relaxed", "sc", "acq_rel")
