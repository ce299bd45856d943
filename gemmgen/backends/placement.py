"""Placement: roles to warps and registers, rings to shared-memory addresses and barriers. Refuses what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gemmgen.backends.limits import LIMITS, registers_at_launch, shared_limit
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
        if body.kind in ("wgmma", "tmem_cast", "tmem_store") and (first % 4 or role.warps % 4):
            raise ValueError(
                f"role {role.name!r} has warps {first}..{first + role.warps - 1}; {body.kind} needs whole warpgroups: "
                "start at a multiple of 4 and use a multiple of 4 warps"
            )
        rings = body.hands_on if body.kind == "transpose_scales" else (*body.fills, *body.drains)
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
    _check_pool(spec, {role.name: (role.warps * 32, role.registers or 0) for role in asked})


def _check_pool(spec: KernelSpec, asked: dict[str, tuple[int, int]]) -> None:
    """Roles share what the launch gave the CTA: one that asks for more waits for ever.

    That is no more a thread than the role that grows asks for, because ptxas compiles for no more.
    """
    threads = sum(each for each, _ in asked.values())
    share = registers_at_launch(spec.arch, threads, spec.ctas_per_sm)
    most, by = min((asked[spec.math.name][1], f"role {spec.math.name!r} asks for"), (share, "a launch gives"))
    where = f"{by} {most} for each of {threads} threads{_of_ctas(spec)}"
    shrinks = asked[spec.load.name][1]
    if shrinks > most:
        raise ValueError(f"role {spec.load.name!r} shrinks to {shrinks} registers, but {where}; lower it")
    total = sum(count * registers for count, registers in asked.values())
    pool = threads * align(most, 8)
    if total > pool:
        raise ValueError(f"spec {spec.name!r}: roles need {total} registers of {pool}, as {where}; lower a role's")


def _of_ctas(spec: KernelSpec) -> str:
    return f" of {spec.ctas_per_sm} CTAs an SM" if spec.ctas_per_sm > 1 else ""


@dataclass(frozen=True)
class Footprint:
    """A ring before it has an address: what one slot holds and what its barriers wait for."""

    name: str
    parts: tuple[Part, ...]
    slots: int | None
    turns: Literal["k", "tile", "store", "launch"] = "k"
    every: int = 1
    full_count: int = 0
    ready_count: int = 0
    empty_count: int = 0
    tx_bytes: int = 0
    columns: int = 0

    @property
    def barrier_bytes(self) -> int:
        """Barriers of one slot."""
        kinds = (self.full_count, self.ready_count, self.empty_count)
        return BARRIER_BYTES * sum(count > 0 for count in kinds)

    def bytes(self, slots: int) -> int:
        """Data of so many slots. Staging buffers come first, so they end where tiles may start."""
        to = TMA_ALIGNMENT if self.turns == "store" else 128
        return align(sum(align(part.bytes * slots, _alignment(part)) for part in self.parts), to)

    def takes(self, slots: int) -> int:
        """Data of so many slots, and their barriers."""
        return self.bytes(slots) + self.barrier_bytes * slots


def place_rings(spec: KernelSpec, rings: Sequence[Footprint], extra: int = 0) -> tuple[tuple[RingPlan, ...], int]:
    """Addresses for staging buffers, then the other rings' data, then all barriers, then ``extra`` bytes; and the sum.

    At most one ring leaves its slots open: it gets what the others leave.
    """
    limit = shared_limit(spec.arch, spec.ctas_per_sm)
    rings = [_with_slots(spec, ring, rings, limit - extra) for ring in rings]
    order = sorted(rings, key=lambda ring: ring.turns != "store")
    placed, start = {}, 0
    for ring in order:
        slots = ring.slots or 1
        placed[ring.name] = (_assign(ring.parts, slots, start), slots)
        start = max([start + ring.bytes(slots), *(part.offset + part.bytes * slots for part in placed[ring.name][0])])
    plans, column = [], 0
    for ring in rings:
        plan = _with_barriers(ring, *placed[ring.name], start)
        start += ring.barrier_bytes * plan.slots
        plans.append(plan.replace(column=column, columns=ring.columns) if ring.columns else plan)
        column += ring.columns * plan.slots
    if start + extra > limit:
        _refuse_bytes(spec, rings, start + extra, limit)
    return tuple(plans), start + extra


def _with_slots(spec: KernelSpec, ring: Footprint, rings: Sequence[Footprint], limit: int) -> Footprint:
    if ring.slots is not None:
        return ring
    others = [other for other in rings if other is not ring]
    room = limit - sum(other.takes(other.slots or 1) for other in others)
    slots = 1
    while slots < MAX_SLOTS and ring.takes(slots + 1) <= room:
        slots += 1
    if slots < 2:
        _refuse_room(spec, ring, others, room)
    return replace(ring, slots=slots)


def _refuse_room(spec: KernelSpec, ring: Footprint, others: Sequence[Footprint], room: int) -> None:
    """The ring that could leave enough by itself is at fault, or else the tile is."""
    needed = ring.takes(2)
    for other in others:
        slots = other.slots or 1
        fewer = [each for each in range(1, slots) if room + other.takes(slots) - other.takes(each) >= needed]
        if fewer:
            raise ValueError(
                f"ring {other.name!r} with {slots} slots takes {other.takes(slots)} B of shared memory, and ring "
                f"{ring.name!r}, which needs 2 slots, {needed} B: more than {spec.arch} has; lower the slots of "
                f"{other.name!r} to {fewer[-1]}"
            )
    slot = sum(part.bytes for part in ring.parts)
    raise ValueError(
        f"ring {ring.name!r}: one slot takes {slot} B and {max(room, 0)} B of shared memory are left on {spec.arch}; "
        "a pipeline needs 2 slots, so use a smaller tile"
    )


def _with_barriers(ring: Footprint, parts: tuple[Part, ...], slots: int, start: int) -> RingPlan:
    """Arrays of barriers one behind the other, only those that something arrives at."""
    at = {}
    for name, count in (("full", ring.full_count), ("ready", ring.ready_count), ("empty", ring.empty_count)):
        at[name] = start if count else 0
        start += BARRIER_BYTES * slots if count else 0
    return RingPlan(
        name=ring.name,
        slots=slots,
        parts=parts,
        turns=ring.turns,
        every=ring.every,
        full=at["full"],
        full_count=ring.full_count,
        ready=at["ready"],
        ready_count=ring.ready_count,
        empty=at["empty"],
        empty_count=ring.empty_count,
        tx_bytes=ring.tx_bytes,
    )


def _refuse_bytes(spec: KernelSpec, rings: Sequence[Footprint], total: int, limit: int) -> None:
    largest = max(rings, key=lambda ring: ring.bytes(ring.slots or 1))
    raise ValueError(
        f"ring {largest.name!r} with {largest.slots} slots needs {total} B of shared memory, {spec.arch} has {limit}"
        f"{f' for each of {spec.ctas_per_sm} CTAs' if spec.ctas_per_sm > 1 else ''}; lower slots or the tile"
    )


def _alignment(part: Part) -> int:
    """Words of scales have no smem_swizzle, whatever they take."""
    return TMA_ALIGNMENT if part.bytes % TMA_ALIGNMENT == 0 and part.copy_by != "words" else 128


def _assign(parts: Sequence[Part], slots: int, start: int) -> tuple[Part, ...]:
    """Each part's slots lie together, widest alignment first as the caller orders them."""
    placed = []
    for part in parts:
        start = align(start, _alignment(part))
        placed.append(part.replace(offset=start))
        start += align(part.bytes * slots, _alignment(part))
    return tuple(placed)
