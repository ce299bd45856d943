"""What the sm90 template prints of the walk over tiles: a loop for each kind of tile, finished strings."""

from __future__ import annotations

from typing import Any

from gemmgen.backends.sm90_tiles import cut_tx_bytes
from gemmgen.ir import MmaPlan, Plan, RingPlan


def tiles_view(plan: Plan, ring: RingPlan) -> dict[str, Any]:
    """Loops over tiles with the product of each and its registers, and the bytes that a slot waits for."""
    mma = plan.mma
    assert isinstance(mma, MmaPlan)
    whole, tx_bytes = ("whole()" if plan.cut_mma else "valid()"), f"{ring.name}::TX_BYTES"
    loops = [_loop(mma, whole)]
    if plan.cut_mma:
        loops.append(_loop(plan.cut_mma, "valid()"))
        tx_bytes = f"tile.cut() ? {ring.name}::CUT_TX_BYTES : {tx_bytes}"
    return {
        "tile_loops": loops,
        "unit_regs": mma.width // 2,
        "tile_first": plan.cut_mma is not None or mma.overlap_epilogue,
        "tx_bytes": tx_bytes,
        "cut_tx_bytes": cut_tx_bytes(ring),
    }


def _loop(mma: MmaPlan, here: str) -> dict[str, Any]:
    """``here`` asks the schedule whether a tile is one of this loop's."""
    walk = "next = tile" if mma.overlap_epilogue else ""
    step = "tile = next" if mma.overlap_epilogue else "tile.advance()"
    head = f"for ({'Schedule ' if walk else ''}{walk}; tile.{here}; {step}) {{"
    return {"mma": mma, "unit_regs": mma.width // 2, "here": here, "head": head}
