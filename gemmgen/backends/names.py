"""Names that emitted text gives to what a plan holds: C types by element type, places of operands in rings."""

from __future__ import annotations

from gemmgen.ir import DType, RingPlan, StorePlan

C_TYPES = {
    DType.F32: "float",
    DType.I32: "i32",
    DType.BF16: "bf16",
    DType.F16: "f16",
    DType.E4M3: "e4m3",
    DType.E5M2: "e5m2",
    DType.E2M1: "u8",
    DType.UE8M0: "u8",
    DType.UE4M3: "u8",
    DType.UE8M0X4: "u32",
    DType.UE4M3X4: "u32",
}
PAIR_TYPES = {
    DType.F32: "float2",
    DType.BF16: "bf16x2",
    DType.F16: "f16x2",
    DType.E4M3: "e4m3x2",
    DType.E5M2: "e5m2x2",
}
WORD_SOURCES = {
    (False, False): "gemmgen::Whole",
    (True, False): "gemmgen::WordsInTurn",
    (False, True): "gemmgen::OfGroup",
    (True, True): "gemmgen::WordsInTurnOfGroup",
}
"""What boxes of words of scales are of, by whether they take halves in turn and whether every group has a matrix."""


def moved_columns(store: StorePlan) -> str:
    """Where columns lie that leave gaps in heads, if they do."""
    heads = store.heads
    return f"gemmgen::HeadSplit<{heads.left}, {heads.mid}, {heads.right}>" if heads else ""


def columns_of(store: StorePlan) -> str:
    """The last argument of a store whose columns move, or are added to by lanes, with a comma first; else nothing."""
    moved = moved_columns(store)
    if store.accumulate and store.through is None:
        return f", gemmgen::Adding<{moved or 'gemmgen::SideBySide'}>"
    return f", {moved}" if moved else ""


def place_name(ring: RingPlan, operand: str) -> str:
    """An operand's place in a ring."""
    return f"{ring.name}::{operand.upper()}"
