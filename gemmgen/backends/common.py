"""Steps of lowering that architectures share: the spec's digest, epilogue operands, staging rows, kernel parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

from gemmgen import catalog
from gemmgen.backends.groups import WORDS_A_CHUNK, check_found_runs, edits_maps, shifted_rows
from gemmgen.backends.limits import LIMITS
from gemmgen.backends.placement import align
from gemmgen.ir import (
    AnyPlan,
    Arch,
    Broadcast,
    DType,
    KernelSpec,
    KGroups,
    Multiplier,
    Node,
    Operand,
    Param,
    Quantise,
    RowGroups,
    SplitK,
    StepPlan,
    StorePlan,
    TensorMapPlan,
    Workspace,
    split_axis,
)
from gemmgen.ir.chain import QUANTISED

SWIZZLE_BYTES = 128
"""Operands sit in shared memory as atoms 128 bytes wide with the 128-byte smem_swizzle."""
BROADCASTS: dict[tuple[str, ...], Broadcast] = {(): "element", ("m",): "m", ("n",): "n", ("m", "n"): "matrix"}
"""How an epilogue operand in memory meets the m by n tile, by its axes."""
SWIZZLES: dict[int, Literal[0, 32, 64, 128]] = {16: 0, 32: 32, 64: 64, 128: 128}
"""The smem_swizzle of staging rows by their width in bytes."""


WORKSPACE = (Param(name="partials", kind="workspace"), Param(name="arrivals", kind="workspace"))
"""Sums of CTAs that share a tile, and how many have written theirs."""
STORED: dict[DType, Literal["u8", "bf16", "f16", "f32"]] = {
    DType.E4M3: "u8",
    DType.E5M2: "u8",
    DType.E2M1: "u8",
    DType.BF16: "bf16",
    DType.F16: "f16",
    DType.F32: "f32",
}
"""How the copy engine names elements of an output; two 4-bit ones are a byte."""


def digest(spec: Node) -> str:
    """Twelve hexadecimal digits that change when the spec does."""
    return hashlib.sha256(spec.to_json().encode()).hexdigest()[:12]


def is_shipped(plan: AnyPlan) -> bool:
    """Whether the catalog has this very spec by its name, so that ``gemmgen emit NAME`` prints it again."""
    spec = catalog.all_specs().get(plan.name)
    return spec is not None and digest(spec) == plan.spec_digest


def check_cluster(spec: KernelSpec) -> None:
    """Refuse clusters of more CTAs than are lowered for the architecture, and hints that only one has."""
    for field in ("evict_first", "part_rows", "to_l2"):
        if spec.arch != Arch.SM90 and getattr(spec.load.body, field, None):
            raise ValueError(f"role {spec.load.name!r} has {field}, which is lowered for sm90 alone; leave it out")
    limit = LIMITS[spec.arch].cluster_size
    if spec.cluster.size > limit:
        raise ValueError(
            f"cluster {spec.cluster.m}x{spec.cluster.n} has {spec.cluster.size} CTAs; at most {limit} here"
        )


def check_factors(spec: KernelSpec) -> None:
    """Refuse factors that are not what every product here multiplies."""
    body = spec.math.body
    assert isinstance(body, Multiplier)
    a, b = spec.operand(body.a), spec.operand(body.b)
    if (set(a.plane), set(b.plane)) != ({"m", "k"}, {"n", "k"}):
        raise ValueError(f"operands {a.name!r} and {b.name!r} have boxes {a.box} and {b.box}; need m by k and n by k")


BOX_LIMIT = 256
"""Elements of a box along an axis."""


def check_groups(spec: KernelSpec) -> None:
    """Refuse what would look across the edges of groups."""
    if spec.groups is None:
        return
    if spec.prologue:
        raise ValueError(f"spec {spec.name!r} has groups and a prologue; only products without one are grouped")
    check_found_runs(spec)


def check_starts(spec: KernelSpec, operand: Operand) -> None:
    """Refuse a factor contiguous along m of which tiles start where the copy engine starts no box."""
    groups = spec.groups
    if not isinstance(groups, RowGroups) or operand.inner != "m" or not (groups.by == "ends" or groups.found):
        return
    step = groups.first_rows(spec.tile.m)
    if step * operand.dtype.bits % (WORDS_A_CHUNK * 32):
        raise ValueError(
            f"operand {operand.name!r} is m-contiguous and groups start at multiples of {groups.alignment} rows, and "
            f"tiles of {step}; TMA starts boxes at whole 16 bytes, so use an alignment of "
            f"{WORDS_A_CHUNK * 32 // operand.dtype.bits}, or k contiguous"
        )


def check_k_groups(spec: KernelSpec, factor: Operand) -> None:
    """Refuse a factor that lies in an order in which the end of a group's k cannot be kept apart from the next one."""
    groups = spec.groups
    if not isinstance(groups, KGroups):
        return
    if groups.apart and spec.arch != Arch.SM90:
        raise ValueError(f"spec {spec.name!r} has groups of k that are apart, which are lowered for sm90 alone")
    if spec.arch == Arch.SM120 and factor.inner == "k" and not groups.apart:
        unit = WORDS_A_CHUNK * 32 // factor.dtype.bits
        if groups.alignment % unit or factor.dtype.bits != 8:
            raise ValueError(
                f"operand {factor.name!r} is {factor.dtype}, k-contiguous, and groups of k start at multiples of "
                f"{groups.alignment}; TMA starts boxes at whole 16 bytes and bytes are cleared, so use 8-bit "
                f"ones and an alignment of {unit}"
            )
        return
    if groups.apart != (factor.inner == "k"):
        raise ValueError(
            f"operand {factor.name!r} is {factor.inner}-contiguous; groups of k that share a matrix have it contiguous "
            "along its other axis, so that rows of the next group can be cleared, and those that are apart along k"
        )


def majorness(operand: Operand, axis: str) -> Literal["k", "mn"]:
    """Whether a factor is contiguous along k or along its own axis."""
    return "mn" if operand.inner == axis else "k"


def staged_row_bytes(width_bytes: int) -> int:
    """The widest staging row, at most a smem_swizzle atom, that divides a block of columns."""
    for size in (128, 64, 32, 16):
        if width_bytes % size == 0:
            return size
    raise ValueError(
        f"warps hold {width_bytes} bytes of a row of the output; TMA stores whole chunks of 16 bytes, so use a wider "
        "instruction or tile, or leave out `through` and store from registers"
    )


def step_plans(spec: KernelSpec) -> tuple[StepPlan, ...]:
    """The epilogue with each step's operand resolved to how it broadcasts."""
    return tuple(
        StepPlan(step=step, along=tuple(_broadcast(spec.operand(name)) for name in step.reads))
        for step in spec.epilogue
    )


def _broadcast(operand: Operand) -> Broadcast:
    return "scalar" if operand.is_scalar else BROADCASTS[tuple(split_axis(axis)[0] for axis in operand.plane)]


def in_halves(spec: KernelSpec, operand: Operand) -> bool:
    """Whether a factor, or its scales, has gate in one half of n and up in the other, which are copied in turn."""
    return spec.gate is not None and spec.gate.layout == "halves" and "n" in operand.axes


def store_map(spec: KernelSpec, store: StorePlan) -> TensorMapPlan:
    """How the copy engine writes a staged chunk of the output."""
    return TensorMapPlan(
        operand=store.operand,
        dtype=store.dtype,
        axes=mapped_axes(spec.output),
        box=(store.row_bytes * 8 // max(store.dtype.bits, 8), store.rows),
        smem_swizzle=SWIZZLES[store.row_bytes],
        element=STORED[store.dtype],
    )


def mapped_axes(operand: Operand) -> tuple[str, ...]:
    """Axes of an operand's tensor map, the contiguous one first; that of groups last."""
    return (operand.inner, operand.outer, *(("g",) if operand.grouped else ()))


def quantising(spec: KernelSpec, width: int) -> dict[str, Any]:
    """Fields of the store plan of a quantised output, of which a thread's block is ``width`` columns wide."""
    step = spec.epilogue[-1]
    if not isinstance(step, Quantise):
        return {}
    block = QUANTISED[spec.operand(step.to).dtype, spec.operand(step.scales).dtype]
    if width % block:
        raise ValueError(
            f"output {step.to!r} is quantised by {block} columns, but warps hold {width}; use a width of whole blocks"
        )
    return {"scales": step.scales, "block": block}


def split_heads(spec: KernelSpec, plan: StorePlan) -> StorePlan:
    """The store of an output whose columns may move by heads; a staged chunk moves as a whole."""
    output = spec.output
    heads = output.heads
    if heads is None:
        return plan
    if plan.through is not None:
        chunk = plan.row_bytes // output.dtype.bytes
        if heads.left % chunk or heads.right % chunk or heads.mid * output.dtype.bytes % 16:
            raise ValueError(
                f"output {output.name!r} has heads of {heads.left} + {heads.right} columns {heads.mid} apart; TMA "
                f"stores {chunk} columns at a time at whole 16 bytes, so both must be multiples of {chunk} and the gap "
                f"of {16 // output.dtype.bytes}; or leave out `through` and store from registers"
            )
    return plan.replace(heads=heads)


def shifted_boxes(spec: KernelSpec, axis: str, count: int) -> tuple[int, int]:
    """Boxes for so many words along m or n, and words in each: more than a tile's where it starts inside a chunk."""
    count = align(count + (WORDS_A_CHUNK if axis == "m" and shifted_rows(spec.groups) else 0), WORDS_A_CHUNK)
    boxes = -(-count // BOX_LIMIT)
    return boxes, count if boxes == 1 else align(-(-count // boxes), 32)


def params(
    spec: KernelSpec, tensor_maps: tuple[TensorMapPlan, ...], workspaces: tuple[Workspace, ...] = ()
) -> tuple[Param, ...]:
    """Tensor maps first (64-byte aligned), then all pointers and strides, scalars, extents: no padding between."""
    mapped = [plan.operand for plan in tensor_maps]
    maps = [Param(name=name, kind="tensor_map", operand=each.operand) for each in tensor_maps for name in each.names]
    wide: list[Param] = []
    scalars: list[Param] = []
    for operand in spec.operands:
        if operand.is_scalar:
            scalars.append(Param(name=operand.name, kind="scalar", operand=operand.name, dtype=operand.dtype))
        elif operand.name not in mapped:
            wide.append(Param(name=operand.name, kind="pointer", operand=operand.name, dtype=operand.dtype))
            if len(operand.plane) == 2:
                wide.append(Param(name=f"{operand.name}_stride", kind="stride", operand=operand.name))
            if operand.axes[:1] == ("s",):
                wide.append(Param(name=f"{operand.name}_slice", kind="stride", operand=operand.name, axis="s"))
            if operand.grouped and operand.plane:
                wide.append(Param(name=f"{operand.name}_group", kind="stride", operand=operand.name, axis="g"))
        elif isinstance(spec.groups, RowGroups) and operand in spec.outputs:
            wide += _cut_rows(operand)
        elif edits_maps(spec) and "k" in operand.box:
            wide.append(Param(name=f"{operand.name}_data", kind="pointer", operand=operand.name, dtype=operand.dtype))
    axes = ("m", "n", "k", *("s" if launch_splits(spec) else ""), *("g" if spec.groups else ""))
    extents = [Param(name=axis, kind="extent") for axis in axes]
    rooms = [Param(name=each.name, kind="workspace") for each in workspaces]
    meets = isinstance(spec.schedule, SplitK) and not spec.schedule.slices
    found = (*maps, *wide, *(WORKSPACE if meets else ()), *rooms, *scalars, *extents)
    names = [each.name for each in found]
    if twice := [each.name for each in spec.operands if names.count(each.name) > 1]:
        raise ValueError(f"operand {twice[0]!r} is called as another parameter of this kernel; rename it")
    return found


def _cut_rows(output: Operand) -> Iterator[Param]:
    """Where a staged output lies, for rows of a box that the end of their group cuts."""
    yield Param(name=f"{output.name}_rows", kind="pointer", operand=output.name, dtype=output.dtype)
    yield Param(name=f"{output.name}_rows_stride", kind="stride", operand=output.name)
    if output.grouped:
        yield Param(name=f"{output.name}_rows_group", kind="stride", operand=output.name, axis="g")


def launch_splits(spec: KernelSpec) -> bool:
    """Whether the launch decides how many CTAs share a tile's K blocks."""
    return isinstance(spec.schedule, SplitK) and spec.schedule.splits is None
