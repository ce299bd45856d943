"""Placement: roles to warps and registers, rings to shared-memory addresses and barriers. Refuses what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.backends.limits import LIMITS, shared_limit
from gemmgen.ir import KernelSpec, Part, RingPlan, RolePlan

TMA_ALIGNMENT = 1024
"""A 128-byte smem_swizzle repeats every 1024 bytes, so every tile starts on such a boundary."""
BARRIER_BYTES = 8
MAX_SLOTS = 32


def align(value: int, to: int) -> int:
    """The smallest multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def place_roles(spec: KernelSpec) -> tuple[RolePlan, ...]:
    """Warps in the order the roles are written; warpgroup roles start at a multiple of four warps."""
    plans: list[RolePlan] = []
    first = 0
    for role in spec.roles:
        body = role.body
        if body.kind == "wgmma" and (first % 4 or role.warps % 4):
            raise ValueError(
                f"role {role.name!r} has warps {first}..{first + role.warps - 1}; wgmma needs whole warpgroups: "
                "start at a multiple of 4 and use a multiple of 4 warps"
            )
        rings = (*body.fills, *body.drains)
        plans.append(
            RolePlan(
                name=role.name,
                kind=body.kind,
                rings=rings,
                first_warp=first,
                warps=role.warps,
                registers=role.registers,
            )
        )
        first += role.warps
    _check_threads(spec, first * 32)
    _check_registers(spec, plans)
    return tuple(plans)


def _check_threads(spec: KernelSpec, threads: int) -> None:
    limit = LIMITS[spec.arch].threads_per_cta
    if threads > limit:
        raise ValueError(
            f"spec {spec.name!r}: roles need {threads} threads, {spec.arch} allows {limit}; use fewer warps"
        )


def _check_registers(spec: KernelSpec, roles: Sequence[RolePlan]) -> None:
    asked = [role for role in roles if role.registers is not None]
    if not asked:
        return
    if len(asked) != len(roles):
        raise ValueError(f"spec {spec.name!r}: either every role names registers or none does")
    for role in asked:
        if role.warps % 4:
            raise ValueError(f"role {role.name!r} has {role.warps} warps; setmaxnreg needs whole warpgroups of 4")
    total = sum(role.warps * 32 * (role.registers or 0) for role in asked) * spec.ctas_per_sm
    limit = LIMITS[spec.arch].registers_per_sm
    if total > limit:
        raise ValueError(f"spec {spec.name!r}: roles need {total} registers, {spec.arch} has {limit}; lower a role's")


@dataclass(frozen=True)
class Footprint:
    """A ring before it has an address: what one slot holds and what its barriers wait for."""

    name: str
    parts: tuple[Part, ...]
    slots: int | None
    full_count: int
    empty_count: int
    tx_bytes: int


def place_rings(spec: KernelSpec, mainloop: Footprint, staging: Footprint | None) -> tuple[tuple[RingPlan, ...], int]:
    """Addresses for the staging ring, then the mainloop ring, then its barriers; and the bytes of it all."""
    limit = shared_limit(spec.arch, spec.ctas_per_sm)
    start = _bytes(staging, staging.slots or 1) if staging else 0
    slots = mainloop.slots or _deepest(spec, mainloop, limit - start)
    total = start + _bytes(mainloop, slots) + 2 * BARRIER_BYTES * slots
    if total > limit:
        raise ValueError(
            f"ring {mainloop.name!r} with {slots} slots needs {total} B of shared memory, {spec.arch} has {limit}"
            f"{f' for each of {spec.ctas_per_sm} CTAs' if spec.ctas_per_sm > 1 else ''}; lower slots or the tile"
        )
    parts = _assign(mainloop.parts, slots, start)
    barriers = start + _bytes(mainloop, slots)
    rings = [
        RingPlan(
            name=mainloop.name,
            slots=slots,
            parts=parts,
            turns="k",
            full=barriers,
            full_count=mainloop.full_count,
            empty=barriers + BARRIER_BYTES * slots,
            empty_count=mainloop.empty_count,
            tx_bytes=mainloop.tx_bytes,
        )
    ]
    if staging:
        staged = _assign(staging.parts, staging.slots or 1, 0)
        rings.append(RingPlan(name=staging.name, slots=staging.slots or 1, parts=staged, turns="store"))
    return tuple(rings), total


def _deepest(spec: KernelSpec, ring: Footprint, room: int) -> int:
    slots = 1
    while slots < MAX_SLOTS and _bytes(ring, slots + 1) + 2 * BARRIER_BYTES * (slots + 1) <= room:
        slots += 1
    if slots < 2:
        slot = sum(part.bytes for part in ring.parts)
        raise ValueError(
            f"ring {ring.name!r}: one slot takes {slot} B and {room} B of shared memory are left on {spec.arch}; "
            "a pipeline needs 2 slots, so use a smaller tile"
        )
    return slots


def _bytes(ring: Footprint, slots: int) -> int:
    return align(sum(align(part.bytes * slots, _alignment(part)) for part in ring.parts), 128)


def _alignment(part: Part) -> int:
    return TMA_ALIGNMENT if part.bytes % TMA_ALIGNMENT == 0 else 128


def _assign(parts: Sequence[Part], slots: int, start: int) -> tuple[Part, ...]:
    """Each part's slots lie together, widest alignment first as the caller orders them."""
    placed = []
    for part in parts:
        start = align(start, _alignment(part))
        placed.append(part.replace(offset=start))
        start += align(part.bytes * slots, _alignment(part))
    return tuple(placed)
