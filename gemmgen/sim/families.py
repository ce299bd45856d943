"""Imports every instruction family, so that their decoders are in the registry.
A new family (tcgen05, block-scaled mma) is one more line here."""

from . import arithmetic, barrier_ops, control, convert, integer, logic, memory_ops, warp_ops  # noqa: F401
