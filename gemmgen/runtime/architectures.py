"""Which GPU architectures gemmgen compiles for: the spellings users write and the names NVRTC wants.

A pure table with look-ups; it loads no compiler and asks no device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gemmgen.runtime.errors import UnsupportedArchitecture

Version = tuple[int, int]
# A spelling: "sm90", "sm_90a", "90", "9.0", 90, (9, 0), an Enum with such a value, or an Architecture.
ArchitectureLike = object


@dataclass(frozen=True)
class Architecture:
    """One compilation target: the family that specs name, and the exact code that NVRTC generates."""

    family: str  # "sm90", "sm100", "sm120": what a KernelSpec says
    number: int  # 90, 100, 103, 120, 121: compute capability times ten
    suffix: str  # "a": this chip only; "f": this chip and later ones of its family
    minimum_nvrtc: Version

    @property
    def code(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    @property
    def virtual(self) -> str:
        return f"compute_{self.number}{self.suffix}"


def _table() -> dict[str, Architecture]:
    rows = (
        Architecture("sm90", 90, "a", (12, 0)),
        Architecture("sm100", 100, "a", (12, 8)),
        Architecture("sm100", 100, "f", (12, 9)),
        Architecture("sm100", 103, "a", (12, 9)),
        Architecture("sm100", 103, "f", (12, 9)),
        Architecture("sm120", 120, "a", (12, 8)),
        Architecture("sm120", 120, "f", (12, 9)),
        Architecture("sm120", 121, "a", (12, 9)),
        Architecture("sm120", 121, "f", (12, 9)),
    )
    return {f"{row.number}{row.suffix}": row for row in rows}


ARCHITECTURES = _table()
FAMILIES = ("sm90", "sm100", "sm120")
SMS = {"sm90": 132, "sm100": 148, "sm120": 188}
"""Streaming multiprocessors that the choice of a kernel assumes when no device is asked."""
_SPELLING = re.compile(r"(?:(?:sm|compute)_?)?(\d+)(?:\.(\d))?([af]?)")


def resolve(spelling: ArchitectureLike) -> Architecture:
    """The architecture that `spelling` means; a bare number means the chip-specific ("a") target."""
    if isinstance(spelling, Architecture):
        return spelling
    key = _key(spelling.value if isinstance(spelling, Enum) else spelling)
    if key is None or key not in ARCHITECTURES:
        allowed = ", ".join(row.code for row in ARCHITECTURES.values())
        raise UnsupportedArchitecture(
            f"arch: {spelling!r} is not an architecture gemmgen compiles for; "
            f"use one of {', '.join(FAMILIES)} or exactly one of {allowed}"
        )
    return ARCHITECTURES[key]


def _key(spelling: object) -> str | None:
    if isinstance(spelling, tuple) and len(spelling) == 2 and all(isinstance(part, int) for part in spelling):
        return f"{spelling[0]}{spelling[1]}a"
    if isinstance(spelling, int) and not isinstance(spelling, bool):
        return f"{spelling}a"
    match = _SPELLING.fullmatch(spelling.strip().lower()) if isinstance(spelling, str) else None
    if match is None:
        return None
    whole, tenth, suffix = match.groups()
    return f"{whole}{tenth or ''}{suffix or 'a'}"


def check_nvrtc(arch: Architecture, version: Version, supported: tuple[int, ...]) -> None:
    """Refuse before compiling when this NVRTC has no code generator for `arch`."""
    if version < arch.minimum_nvrtc:
        raise UnsupportedArchitecture(
            f"arch: {arch.code} needs NVRTC {_dotted(arch.minimum_nvrtc)} or newer, "
            f"this is NVRTC {_dotted(version)}; {_UPGRADE}"
        )
    if arch.number not in supported:
        raise UnsupportedArchitecture(
            f"arch: {arch.code} is not offered by this NVRTC {_dotted(version)} (first offered by "
            f"{_dotted(arch.minimum_nvrtc)}), which lists {', '.join(f'sm_{n}' for n in supported)}; {_UPGRADE}"
        )


_UPGRADE = "pip install --upgrade nvidia-cuda-nvrtc"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
