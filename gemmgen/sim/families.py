"""Imports every instruction family, so that their decoders are in the registry.
A new family is one more name here."""

from . import (  # noqa: F401
    arithmetic,
    async_copy,
    atomics,
    barrier_ops,
    bit_fields,
    cluster_ops,
    compare,
    control,
    convert,
    cta_barrier_ops,
    fence_ops,
    float_redux,
    fragment_ops,
    integer,
    launch_control,
    logic,
    map_ops,
    matrix,
    memory_ops,
    mma_sync,
    tcgen05_alloc,
    tcgen05_copy,
    tcgen05_mma,
    warp_ops,
)
