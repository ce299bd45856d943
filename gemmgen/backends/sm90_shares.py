"""Warpgroups of sm90 that share the K steps of every slot: what that asks for, and where their sums meet.

Knows specs and plans of products, no other part of lowering.
"""

from __future__ import annotations

from gemmgen.ir import Cast, KernelSpec, MmaPlan, SumOfSquares, Wgmma

GROUP_THREADS = 128
ALIGNMENT = 16
"""Lanes write and read 16 bytes at a time."""


def shares_of_k(spec: KernelSpec, groups: int) -> int:
    """How many warpgroups multiply a part of each slot. Raises ``ValueError`` where slots cannot be shared so."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    if not body.share_k:
        return 1
    where = f"role {spec.math.name!r} has share_k"
    if groups != 2:
        raise ValueError(f"{where} and {groups} warpgroups; 2 of them share a slot, so give it 8 warps")
    if not any(isinstance(step, Cast) for step in spec.prologue):
        raise ValueError(
            f"{where}, but no prologue casts A; factors out of shared memory need no help, so leave it out"
        )
    return groups


def meeting_bytes(spec: KernelSpec, mma: MmaPlan) -> int:
    """Shared memory for the sums of all warpgroups but the first, wherever it may begin."""
    if mma.shares == 1:
        return 0
    squares = 4 * mma.row_blocks * any(isinstance(step, SumOfSquares) for step in spec.prologue)
    return (mma.shares - 1) * GROUP_THREADS * 4 * (mma.accumulators + squares) + ALIGNMENT
