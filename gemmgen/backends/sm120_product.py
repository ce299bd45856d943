"""The product of an sm120 kernel: which mma.sync, on which fragments of which warp, with which scales.

Knows specs and plans; refuses what the tensor core cannot multiply, in sentences.
"""

from __future__ import annotations

from typing import Literal

from gemmgen.backends.common import majorness
from gemmgen.backends.limits import registers_at_launch
from gemmgen.ir import DType, KernelSpec, MmaSync, MmaSyncPlan, Operand, split_axis

STEP_BYTES = 32
"""One mma.sync consumes 32 bytes of k per row, whatever the element type."""
BLOCK_ROWS, BLOCK_COLUMNS = 16, 8
"""Rows and columns of one mma.sync."""
SCALES_PER_WORD = 4
ATOM_ELEMENTS = 64
"""16-bit elements in the 128 bytes that the copy engine writes side by side for an operand that is not k-contiguous."""

Call = Literal["bf16", "tf32", "e4m3", "mxf8f6f4", "mxf4nvf4_2x", "mxf4nvf4_4x"]
BLOCKS: dict[Call, tuple[int, ...]] = {"mxf8f6f4": (32, 128), "mxf4nvf4_2x": (32, 128), "mxf4nvf4_4x": (16,)}
"""Elements of k that a scale may cover."""


def multiplier(spec: KernelSpec) -> MmaSync:
    """The body of the role that multiplies."""
    assert isinstance(spec.math.body, MmaSync)
    return spec.math.body


def product(spec: KernelSpec) -> MmaSyncPlan:
    """The instruction, its operands and each warp's share of the tile."""
    body = multiplier(spec)
    a, b = spec.operand(body.a), spec.operand(body.b)
    sfa, sfb = (body.scales.a, body.scales.b) if body.scales else (None, None)
    row_axis: Literal["m", "n"] = "m"
    if body.swap_ab:
        a, b, sfa, sfb, row_axis = b, a, sfb, sfa, "n"
    call = _call(spec, body, a, b)
    row_blocks, column_blocks = _share(spec, body)
    cast_a = bool(spec.prologue)
    step_k = STEP_BYTES * 8 // smem_bits(b if cast_a else a, body)
    mma = MmaSyncPlan(
        instruction=f"mma_sync_m16n8k{step_k}_{call}_{a.dtype}_{b.dtype}",
        call=call,
        row_axis=row_axis,
        step_k=step_k,
        steps=spec.tile.k // step_k,
        row_bytes=_row_bytes(spec, body, a),
        a=a.name,
        b=b.name,
        a_type=a.dtype,
        b_type=b.dtype,
        a_major=majorness(a, row_axis),
        b_major=majorness(b, column_axis(row_axis)),
        sfa=sfa,
        sfb=sfb,
        sfa_block=_block(spec, sfa, call) if sfa else 0,
        sfb_block=_block(spec, sfb, call) if sfb else 0,
        unroll=body.unroll,
        cast_a=cast_a,
        warp_rows=body.warp_rows,
        warp_columns=spec.math.warps // body.warp_rows,
        row_blocks=row_blocks,
        column_blocks=column_blocks,
    )
    _check_majors(mma)
    _check_registers(spec, mma)
    return mma


def column_axis(row_axis: str) -> Literal["m", "n"]:
    """The output axis on the product's columns, given the one on its rows."""
    return "m" if row_axis == "n" else "n"


def smem_bits(operand: Operand, body: MmaSync) -> int:
    """Bits an element takes in shared memory."""
    return 8 if operand.dtype == DType.E2M1 and not body.packed else operand.dtype.bits


def spreads(dtype: DType, call: str) -> bool:
    """Whether 4-bit elements take a byte each in shared memory."""
    return dtype == DType.E2M1 and call == "mxf8f6f4"


def _call(spec: KernelSpec, body: MmaSync, a: Operand, b: Operand) -> Call:
    types = {a.dtype, b.dtype}
    scales = {spec.operand(name).dtype for name in (body.scales.a, body.scales.b)} if body.scales else set()
    plain: dict[DType, Call] = {DType.BF16: "bf16", DType.F32: "tf32", DType.E4M3: "e4m3"}
    if not scales and len(types) == 1 and a.dtype in plain:
        return plain[a.dtype]
    if spec.prologue and not scales:
        return "tf32"
    if scales == {DType.UE8M0X4} and body.packed and types == {DType.E2M1}:
        return "mxf4nvf4_2x"
    if scales == {DType.UE4M3X4} and body.packed and types == {DType.E2M1}:
        return "mxf4nvf4_4x"
    if scales == {DType.UE8M0X4} and not body.packed and types <= {DType.E4M3, DType.E5M2, DType.E2M1}:
        return "mxf8f6f4"
    raise ValueError(
        f"no mma.sync takes {'packed ' if body.packed else ''}{a.dtype} by {b.dtype} with "
        f"{' and '.join(sorted(scales)) or 'no'} scales; bf16, f32 and e4m3 by themselves take none, 8-bit and mixed "
        "types ue8m0x4, packed e2m1 by e2m1 ue8m0x4 or ue4m3x4"
    )


def _row_bytes(spec: KernelSpec, body: MmaSync, a: Operand) -> Literal[64, 128]:
    width = spec.tile.k * smem_bits(a, body) // 8
    if spec.prologue and width != 128:
        raise ValueError(f"tile.k is {spec.tile.k} = {width} B of {a.dtype}; rows of a factor that is cast are 128 B")
    spread = not body.packed and DType.E2M1 in (spec.operand(body.a).dtype, spec.operand(body.b).dtype)
    if width not in (64, 128) or (spread and width != 128):
        allowed = "128 B where 4-bit elements take a byte" if spread else "64 or 128 B"
        raise ValueError(f"tile.k is {spec.tile.k} = {width} B of {a.dtype} in shared memory; a row must be {allowed}")
    return 64 if width == 64 else 128


def _share(spec: KernelSpec, body: MmaSync) -> tuple[int, int]:
    """Each warp's blocks of 16 rows and 8 columns, as the grid of warps shares the tile out."""
    warps, rows = spec.math.warps, body.warp_rows
    if warps % rows:
        raise ValueError(f"role {spec.math.name!r} has {warps} warps, no multiple of warp_rows={rows}")
    extent = {"m": spec.tile.m, "n": spec.tile.n}
    across, down = ("m", "n") if body.swap_ab else ("n", "m")
    columns = warps // rows
    step = BLOCK_COLUMNS if spec.prologue else 2 * BLOCK_COLUMNS  # ldmatrix brings b's blocks two by two
    for axis, count, unit, what in ((down, rows, BLOCK_ROWS, "rows"), (across, columns, step, "columns")):
        if extent[axis] % (unit * count):
            raise ValueError(
                f"tile.{axis} is {extent[axis]}: {count} warps along the {what} of the product need a multiple of "
                f"{unit * count}; change tile.{axis} or warp_rows"
            )
    return extent[down] // rows // BLOCK_ROWS, extent[across] // columns // BLOCK_COLUMNS


def _check_majors(mma: MmaSyncPlan) -> None:
    """A factor that is not k-contiguous is transposed by ldmatrix, which does so for 16-bit elements only."""
    spans = (
        (mma.a, mma.a_type, mma.a_major, mma.row_axis, mma.row_blocks * BLOCK_ROWS),
        (mma.b, mma.b_type, mma.b_major, column_axis(mma.row_axis), mma.column_blocks * BLOCK_COLUMNS),
    )
    for name, dtype, major, axis, span in spans:
        if major == "k":
            continue
        if dtype != DType.BF16:
            raise ValueError(
                f"operand {name!r} is {axis}-contiguous; mma.sync reads {dtype} k-contiguous, so lay it out anew"
            )
        if span % ATOM_ELEMENTS and ATOM_ELEMENTS % span:
            raise ValueError(
                f"operand {name!r} is {axis}-contiguous and a warp has {span} of {axis}; that must divide "
                f"{ATOM_ELEMENTS} or be a multiple of it, so change the tile or warp_rows"
            )


def _check_registers(spec: KernelSpec, mma: MmaSyncPlan) -> None:
    """Sums, the fragments of a step and scale words live in registers together, beside some forty of other things."""
    fragments = 4 * mma.row_blocks + 2 * mma.column_blocks
    scales = mma.row_blocks + mma.column_blocks if mma.sfa else 0
    needed = mma.accumulators + fragments + scales + 40
    threads = sum(role.warps for role in spec.roles) * 32
    limit = spec.math.registers or registers_at_launch(spec.arch, threads, spec.ctas_per_sm)
    if needed > limit:
        raise ValueError(
            f"tile {spec.tile.m}x{spec.tile.n} on {mma.warp_rows}x{mma.warp_columns} warps needs {needed} registers a "
            f"thread, {mma.accumulators} of them sums, and {limit} are left; use a smaller tile or more warps"
        )


def _block(spec: KernelSpec, name: str, call: Call) -> int:
    """Elements of k that one scale of an operand covers: a word of four stands for ``k / divisor``."""
    operand = spec.operand(name)
    divisor = next((split_axis(axis)[1] for axis in operand.box if split_axis(axis)[0] == "k"), 0)
    block, allowed = divisor // SCALES_PER_WORD, BLOCKS[call]
    if block not in allowed or divisor % SCALES_PER_WORD:
        axes = [f"k/{each * SCALES_PER_WORD}" for each in allowed]
        raise ValueError(f"scales {name!r} have box {operand.box}; {call} takes words along {' or '.join(axes)}")
    if operand.inner in (axis for axis in operand.box if axis.startswith("k")):
        raise ValueError(f"scales {name!r} are k-contiguous; words come by TMA with m or n contiguous")
    return block
