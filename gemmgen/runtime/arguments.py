"""The argument block: a plan and the call's tensors become the bytes of the kernel's parameter struct, and the grid.

Knows plans, not torch and not the driver: addresses come in as integers and tensor maps through an encoder, so that
a GPU and the simulator are handed the same block.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from gemmgen.ir import AnyPlan, FoundRuns, KGroups, LayoutPlan, Operand, Param, Plan, SplitK, TensorMapPlan, split_axis

TENSOR_MAP_BYTES = 128
LANES = 32
GROUP = 8
"""Neighbouring elements of either half of an axis that boxes take in turn."""
SPREADING = "16u4_align16b"
"""Element of maps that give every 4-bit number a byte of its own on the way to shared memory."""
SPREAD_ELEMENTS = 128
"""Such maps read as many at a time: contiguous extents are multiples of it, which rows have room for. Past the end are
finite numbers, as all of 4 bits are, and meet zeros of the other factor; where both are read so, nothing is there."""


class Encoder(Protocol):
    """Describes a tensor to the copy engine; see ``gemmgen.sim.encode_tensor_map``."""

    def __call__(
        self,
        dtype: str,
        address: int,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        element_strides: tuple[int, ...],
        swizzle: int,
    ) -> bytes: ...


@dataclass(frozen=True)
class TensorView:
    """Where a tensor lies: byte address, and per dimension of the operand's box its extent and stride in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """One call: extents of m, n and k, the tensors by operand name, the host scalars by name."""

    sizes: Mapping[str, int]
    tensors: Mapping[str, TensorView]
    scalars: Mapping[str, float]
    workspace: Mapping[str, int] = field(default_factory=dict)
    """Addresses by parameter name; ``workspace_bytes`` says how much lies there."""


def extent(operand: Operand, axis: str, sizes: Mapping[str, int]) -> int:
    """An operand's elements along an axis as written in its box: ``"k/128"`` is k divided by 128, rounded up."""
    name, divisor = split_axis(axis)
    count = -(-sizes[name] // divisor)
    return operand.heads.columns(count) if operand.heads is not None and name == "n" else count


def expected_shape(operand: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape an operand's tensor must have for a problem of these sizes; 4-bit elements are stored two a byte."""
    shape = (extent(operand, axis, sizes) for axis in operand.box)
    if operand.dtype.packed == 1:
        return tuple(shape)
    return tuple(
        -(-size // operand.dtype.packed) if axis == operand.inner else size
        for axis, size in zip(operand.box, shape, strict=True)
    )


def grid_size(plan: AnyPlan, sizes: Mapping[str, int], sms: int) -> int:
    """CTAs to launch: every tile its own, or as many as are resident at once; whole clusters either way."""
    if isinstance(plan, LayoutPlan):
        return _checked(-(-sizes["m"] // plan.tile_m) * -(-sizes["k"] // plan.tile_k), "m", "k", sizes)
    size = plan.cluster.size
    parts = plan.schedule.parts if plan.schedule.kind == "cut_remainder" else 1
    units = _checked(prod(_units(plan, sizes).values()) * (plan.splits or sizes["s"]) * parts, "m", "n", sizes)
    if plan.schedule.kind in ("persistent", "split_k", "cut_remainder"):
        units = min(units, max(1, sms * plan.ctas_per_sm // size))
    return units * size


def _units(plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """Clusters of tiles along either axis, at most where groups decide; the last ones may stick out."""
    tile, cluster = plan.tile, plan.cluster
    units = {"m": -(-sizes["m"] // (tile.m * cluster.m)), "n": -(-sizes["n"] // (tile.n * cluster.n))}
    if plan.groups is not None:
        own = isinstance(plan.groups, KGroups) or plan.groups.by == "counts"
        ragged = sizes["g"] if plan.groups.by == "ends" else 0
        units["m"] = units["m"] * sizes["g"] if own else units["m"] + ragged
    if plan.found_runs is not None:
        units["m"] = _found_at_most(plan, sizes, plan.found_runs)
    return units


def _found_at_most(plan: Plan, sizes: Mapping[str, int], found: FoundRuns) -> int:
    """Rows of tiles, at most, where a launch finds the parts of rows that groups have."""
    assert plan.groups is not None
    alignment, what = plan.groups.alignment, f"use a tile that divides {plan.groups.alignment}"
    if (parts := -(-sizes["m"] // alignment)) > found.parts:
        raise ValueError(
            f"m={sizes['m']}: groups by ids start at multiples of {alignment} rows, and {plan.name} finds them in "
            f"{found.parts * alignment} rows at most; split the problem, or {what}"
        )
    if sizes["g"] > found.groups:
        raise ValueError(f"g={sizes['g']}: {plan.name} finds {found.groups} groups at most by their ids; {what}")
    return parts * -(-alignment // plan.tile.m)


def with_splits(plan: AnyPlan, sizes: Mapping[str, int], sms: int) -> Mapping[str, int]:
    """The extents, with that of ``s`` where the launch decides how many CTAs share a tile."""
    if isinstance(plan, LayoutPlan) or not isinstance(plan.schedule, SplitK) or plan.splits or "s" in sizes:
        return sizes
    tiles, k_blocks = prod(_units(plan, sizes).values()), -(-sizes["k"] // plan.tile.k)
    return {**sizes, "s": plan.schedule.sharing(tiles, sms * plan.ctas_per_sm, k_blocks)}


def _number(name: str, value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        raise ValueError(f"{name}: is {value}, but is passed in fp32; pass at most 3.4e38, or inf") from None


def _checked(tiles: int, rows: str, cols: str, sizes: Mapping[str, int]) -> int:
    if tiles > 2**32 - 1:
        extents = f"{rows}={sizes[rows]}, {cols}={sizes[cols]}"
        raise ValueError(f"{extents}: {tiles} tiles are more than 2^32 - 1; split the problem")
    return tiles


def workspace_bytes(plan: AnyPlan, sizes: Mapping[str, int], sms: int) -> dict[str, int]:
    """Bytes of each workspace of a launch: what warps share on the way to a sum, who has come, tensor maps of CTAs."""
    if isinstance(plan, LayoutPlan):
        return {}
    tiles = {axis: units * getattr(plan.cluster, axis) for axis, units in _units(plan, sizes).items()}
    tiles |= {"g": sizes.get("g", 1), "cta": grid_size(plan, sizes, sms)}
    reductions = {each.name: each.elements * prod(tiles[axis] for axis in each.per) * 4 for each in plan.workspaces}
    return {**_split_bytes(plan, sizes, sms), **reductions}


def _split_bytes(plan: Plan, sizes: Mapping[str, int], sms: int) -> dict[str, int]:
    """Sums of CTAs that share a tile, and counters, all 0 before the launch and after."""
    splits = plan.splits or sizes["s"]
    if not isinstance(plan.schedule, SplitK) or plan.schedule.slices or splits == 1:
        return {}
    shared = plan.schedule.shared(prod(_units(plan, sizes).values()), sms * plan.ctas_per_sm)
    warps = shared * plan.storing.warps
    return {"partials": warps * splits * plan.sums * LANES * 4, "arrivals": warps * 4}


def in_use(plan: AnyPlan, problem: Problem, room: Mapping[str, int]) -> list[tuple[int, int]]:
    """Addresses and bytes of what kernels ahead of an early launch may use until it waits: all but what is read ahead.

    ``room`` are the bytes of each workspace, whose last user may be still running.
    """
    if isinstance(plan, LayoutPlan) or not plan.programmatic_launch:
        return []
    promised = [problem.tensors[name] for name in plan.ahead]
    ranges = [(problem.workspace[name], size) for name, size in room.items()]
    for name, view in problem.tensors.items():
        if view not in promised:
            dtype = plan.operand(name).dtype
            ranges += _runs(view, dtype.packed * dtype.bits // 8)
    return ranges


def _runs(view: TensorView, size: int) -> list[tuple[int, int]]:
    """A tensor's bytes, run by run: between its rows may lie what is another's."""
    if 0 in view.shape:
        return []
    starts, nbytes = [view.address], size
    for stride, count in sorted((stride * size, count) for stride, count in zip(view.strides, view.shape, strict=True)):
        if stride == nbytes or count == 1:
            nbytes *= count
        else:
            starts = [start + stride * i for start in starts for i in range(count)]
    return [(start, nbytes) for start in starts]


def pack(plan: AnyPlan, problem: Problem, encode: Encoder) -> bytes:
    """The parameter struct, field by field in the plan's order; every field is naturally aligned by that order."""
    return b"".join(_field(plan, param, problem, encode) for param in plan.params)


def _field(plan: AnyPlan, param: Param, problem: Problem, encode: Encoder) -> bytes:
    if param.kind == "extent":
        return struct.pack("<I", problem.sizes[param.name])
    if param.kind == "workspace":
        return struct.pack("<Q", problem.workspace.get(param.name, 0))
    assert param.operand is not None
    if param.kind == "scalar":
        return _number(param.operand, problem.scalars[param.operand])
    view = problem.tensors[param.operand]
    if param.kind == "pointer":
        return struct.pack("<Q", view.address)
    operand = plan.operand(param.operand)
    if param.kind == "stride":
        return struct.pack("<Q", view.strides[operand.box.index(param.axis or operand.outer)])
    assert isinstance(plan, Plan)
    entry = next(entry for entry in plan.tensor_maps if entry.operand == param.operand)
    if param.name != entry.operand:
        entry = entry.replace(box=(entry.box[0], entry.part_rows))
    return tensor_map(operand, entry, problem, plan.store.operand, encode)


def tensor_map(operand: Operand, entry: TensorMapPlan, problem: Problem, output: str, encode: Encoder) -> bytes:
    """One operand's tensor map. With k = 0 the kernel reads no operand, so any legal map does: the output's memory."""
    view, packed = problem.tensors[operand.name], operand.dtype.packed
    size = packed * operand.dtype.bits // 8
    outer = operand.box.index(entry.axes[1])
    dims = (extent(operand, entry.axes[0], problem.sizes), extent(operand, entry.axes[1], problem.sizes))
    if operand.ragged:
        dims = (dims[0], view.shape[outer])
    pitch, address = view.strides[outer] * size, view.address
    if entry.element == "u8":
        dims = (-(-dims[0] // packed), dims[1])
    spread = SPREAD_ELEMENTS if entry.element == SPREADING else 1
    dims = (-(-dims[0] // spread) * spread, dims[1])
    if 0 in dims:
        dims = (max(spread, 16 // size), 1)
        pitch, address = 32, problem.tensors[output].address // 32 * 32
    if dims[1] == 1:
        step = max(16, spread // packed)
        pitch = -(-view.shape[operand.box.index(entry.axes[0])] * size // step) * step
    sides = list(zip(dims, (size, pitch), entry.box, strict=True))
    if entry.halves and problem.sizes["k"] > 0:
        sides = [part for side, axis in zip(sides, entry.axes, strict=False) for part in _in_turn(axis, *side)]
    if operand.grouped:
        sides.append(_groups(problem, view, size, pitch))
    extents, strides, box = zip(*sides, strict=True)
    return encode(entry.element, address, extents, strides[1:], box, (1,) * len(box), entry.smem_swizzle)


def _groups(problem: Problem, view: TensorView, size: int, pitch: int) -> tuple[int, int, int]:
    """Extent, stride in bytes and box of a map along the axis of groups; nothing is read where k or m is 0."""
    count, stride = problem.sizes["g"], view.strides[0] * size
    return (count, stride, 1) if count > 1 and 0 not in view.shape else (1, pitch, 1)


def _in_turn(axis: str, count: int, stride: int, box: int) -> list[tuple[int, int, int]]:
    """Extents, strides in bytes and boxes of a map along an axis: n has 8 elements, 2 halves, groups of both."""
    if axis != "n":
        return [(count, stride, box)]
    groups, boxes = count // (2 * GROUP), box // (2 * GROUP)
    return [(GROUP, stride, GROUP), (2, groups * GROUP * stride, 2), (groups, GROUP * stride, boxes)]
