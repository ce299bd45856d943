"""What each architecture allows: facts from the CUDA programming guide and the PTX ISA, with no logic."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.ir import Arch

LANES = 32
QUARTERS = 4
"""Parts of an SM, each with its own warps and registers."""


@dataclass(frozen=True)
class Limits:
    """Limits of one architecture; bytes unless said otherwise."""

    shared_per_cta: int
    """Dynamic shared memory one CTA can ask for."""
    shared_per_sm: int
    shared_reserved: int
    """Shared memory the system takes for itself in every CTA."""
    threads_per_cta: int
    registers_per_sm: int
    registers_per_thread: int
    cluster_size: int


LIMITS: dict[Arch, Limits] = {
    Arch.SM90: Limits(
        shared_per_cta=232448,
        shared_per_sm=233472,
        shared_reserved=1024,
        threads_per_cta=1024,
        registers_per_sm=65536,
        registers_per_thread=255,
        cluster_size=2,
    ),
    Arch.SM100: Limits(
        shared_per_cta=232448,
        shared_per_sm=233472,
        shared_reserved=1024,
        threads_per_cta=1024,
        registers_per_sm=65536,
        registers_per_thread=255,
        cluster_size=2,
    ),
    Arch.SM120: Limits(
        shared_per_cta=101376,
        shared_per_sm=102400,
        shared_reserved=1024,
        threads_per_cta=1024,
        registers_per_sm=65536,
        registers_per_thread=255,
        cluster_size=1,
    ),
}


def shared_limit(arch: Arch, ctas_per_sm: int) -> int:
    """Dynamic shared memory a CTA can have when ``ctas_per_sm`` of them share an SM."""
    limits = LIMITS[arch]
    share = limits.shared_per_sm // ctas_per_sm - limits.shared_reserved
    return min(limits.shared_per_cta, share // 1024 * 1024 if ctas_per_sm > 1 else share)


def registers_at_launch(arch: Arch, threads: int, ctas_per_sm: int) -> int:
    """The most registers a thread starts with, as ptxas has it: a quarter of the warps shares a quarter, by eights."""
    limits = LIMITS[arch]
    quarter = -(-threads * ctas_per_sm // (QUARTERS * LANES))
    return min(limits.registers_per_thread, limits.registers_per_sm // (quarter * QUARTERS * LANES) // 8 * 8)
