"""What every plan must satisfy, checked on all shipped specs: nothing overlaps, counts follow, blocks add up."""

from __future__ import annotations

import itertools

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.backends.limits import LIMITS, shared_limit
from gemmgen.ir import KernelSpec, MmaPlan, Plan, RingPlan, UmmaPlan

SPECS = list(catalog.specs().values())
PARAM_BYTES = {"tensor_map": 128, "pointer": 8, "stride": 8, "workspace": 8, "scalar": 4, "extent": 4}


@pytest.fixture(scope="module")
def plans() -> list[tuple[KernelSpec, Plan]]:
    return [(spec, lower(spec)) for spec in SPECS]


@pytest.fixture(scope="module")
def hopper(plans: list[tuple[KernelSpec, Plan]]) -> list[tuple[Plan, MmaPlan]]:
    """Plans whose math warps multiply, with their products."""
    return [(plan, plan.mma) for _, plan in plans if isinstance(plan.mma, MmaPlan)]


def regions(plan: Plan) -> list[tuple[int, int, str]]:
    """Every byte range of shared memory that the plan hands out."""
    found = []
    for ring in plan.rings:
        found += [
            (part.offset, part.offset + part.bytes * ring.slots, f"{ring.name}.{part.operand}") for part in ring.parts
        ]
    found += [(start, start + 8 * slots, f"{name} barriers") for name, start, slots in plan.barriers]
    if isinstance(plan.mma, UmmaPlan):
        found.append((plan.mma.tmem_address, plan.mma.tmem_address + 4, "address of tensor memory"))
    return sorted(found)


def test_shared_memory_is_handed_out_once_and_fits(plans: list[tuple[KernelSpec, Plan]]) -> None:
    for spec, plan in plans:
        found = regions(plan)
        for (_, end, what), (start, _, other) in itertools.pairwise(found):
            assert end <= start, f"{plan.name}: {what} ends at {end}, {other} starts at {start}"
        assert found[-1][1] <= plan.shared_bytes <= shared_limit(spec.arch, spec.ctas_per_sm)


def test_swizzled_tiles_start_on_their_pattern(plans: list[tuple[KernelSpec, Plan]]) -> None:
    for _, plan in plans:
        swizzled = {entry.operand for entry in plan.tensor_maps if entry.smem_swizzle == 128}
        for ring in plan.rings:
            for part in ring.parts:
                alignment = 1024 if part.operand in swizzled and ring.turns == "k" else 16
                assert part.offset % alignment == 0, (plan.name, part)
                assert part.bytes % alignment == 0, (plan.name, part)
            assert ring.full % 8 == 0 and ring.empty % 8 == 0


def test_transaction_bytes_are_what_the_boxes_bring(hopper: list[tuple[Plan, MmaPlan]]) -> None:
    for plan, _ in hopper:
        ring = plan.mainloop
        assert ring.tx_bytes == sum(brought(plan, ring).values()), plan.name


def brought(plan: Plan, ring: RingPlan) -> dict[str, int]:
    """Bytes that arrive in one CTA's slot by operand: boxes times the CTAs that share them, those in a stack, atoms."""
    boxes = {entry.operand: entry for entry in plan.tensor_maps}
    found = {}
    for part in ring.parts:
        if part.copy_by == "tma":
            entry = boxes[part.operand]
            box = entry.box[0] * entry.box[1] * entry.dtype.bytes
            found[part.operand] = box * part.shared * part.stack * part.atoms
    return found


def test_tiles_are_covered_by_boxes_and_instructions(hopper: list[tuple[Plan, MmaPlan]]) -> None:
    for plan, mma in hopper:
        tile = plan.tile
        rows = mma.groups * mma.row_blocks * 64
        down, across = (tile.n, tile.m) if mma.row_axis == "n" else (tile.m, tile.n)
        assert rows == down or (rows == 64 > down and plan.schedule.kind == "cluster_split_k")
        assert mma.col_blocks * mma.width == across
        assert mma.steps * mma.step_k * mma.shares == tile.k
        size = plan.operand(mma.a).dtype.bytes
        assert plan.ring("ab").part(mma.a).bytes == rows * tile.k * size
        assert plan.ring("ab").part(mma.b).bytes >= across * tile.k * size


def test_every_draining_warp_arrives_once(hopper: list[tuple[Plan, MmaPlan]]) -> None:
    for plan, _ in hopper:
        warps = plan.role("math").warps
        lanes = 32 if any(part.copy_by == "lanes" for part in plan.mainloop.parts) else 0
        assert plan.mainloop.empty_count == warps * plan.cluster.size
        assert plan.mainloop.full_count == 1 + lanes


def test_roles_share_the_registers_and_threads_of_an_sm(plans: list[tuple[KernelSpec, Plan]]) -> None:
    for spec, plan in plans:
        limits = LIMITS[spec.arch]
        assert plan.threads == 32 * sum(role.warps for role in plan.roles) <= limits.threads_per_cta
        asked = sum(32 * role.warps * (role.registers or 0) for role in plan.roles)
        assert asked * spec.ctas_per_sm <= limits.registers_per_sm


def test_parameters_are_naturally_aligned_in_order(plans: list[tuple[KernelSpec, Plan]]) -> None:
    for _, plan in plans:
        offset = 0
        for param in plan.params:
            size = PARAM_BYTES[param.kind]
            assert offset % min(size, 64) == 0, (plan.name, param)
            offset += size
        extents = ["m", "n", "k"] if plan.splits else ["m", "n", "k", "s"]
        assert [param.name for param in plan.params[-len(extents) :]] == extents
        assert offset < 4096


def test_a_plan_depends_on_the_spec_alone(plans: list[tuple[KernelSpec, Plan]]) -> None:
    for spec, plan in plans[::10]:
        assert lower(KernelSpec.from_json(spec.to_json())) == plan


def test_the_digest_tells_specs_apart(plans: list[tuple[KernelSpec, Plan]]) -> None:
    assert len({plan.spec_digest for _, plan in plans}) == len(plans)
    first = SPECS[0]
    assert lower(first.replace(programmatic_launch=True)).spec_digest != lower(first).spec_digest
