"""Names for shared-memory regions, barriers and warps, so that messages speak the author's words.
Neutral data that any caller may fill; the simulator works the same without it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Labels:
    """Offsets are relative to the start of dynamic shared memory, columns to the first column of tensor memory."""

    barriers: list[tuple[str, int, int]] = field(default_factory=list)
    regions: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    roles: list[tuple[str, int, int]] = field(default_factory=list)
    named_barriers: dict[int, str] = field(default_factory=dict)
    columns: list[tuple[str, int, int, int]] = field(default_factory=list)  # name, first, columns of one slot, slots

    def barrier(self, offset: int) -> str:
        """`ab.full[2]` for the 8-byte mbarrier at offset, or empty."""
        for name, start, count in self.barriers:
            if start <= offset < start + 8 * count:
                return f"{name}[{(offset - start) // 8}]"
        return ""

    def region(self, offset: int) -> str:
        """`ab.a[2]+64` for a byte of a labelled region, or empty."""
        for name, start, nbytes, stride, count in self.regions:
            slot, inner = divmod(offset - start, stride) if stride else (0, offset - start)
            if 0 <= slot < count and 0 <= inner < nbytes:
                return f"{name}[{slot}]" + (f"+{inner}" if inner else "")
        return ""

    def column(self, number: int) -> str:
        """`acc[1]` for a column of tensor memory, or empty."""
        for name, first, width, count in self.columns:
            if first <= number < first + width * count:
                return f"{name}[{(number - first) // width}]"
        return ""

    def role(self, warp: int) -> str:
        for name, first, warps in self.roles:
            if first <= warp < first + warps:
                return name
        return ""
