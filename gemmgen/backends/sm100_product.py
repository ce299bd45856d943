"""The product of an sm100 kernel: which tcgen05 instruction, on which operands, with which scales.

Knows specs and plans; refuses what the tensor core cannot multiply, in sentences.
"""

from __future__ import annotations

from typing import Literal

from gemmgen.backends.common import SWIZZLE_BYTES, majorness
from gemmgen.backends.umma import instruction_descriptor
from gemmgen.ir import DType, KernelSpec, Operand, Tcgen05, UmmaPlan, split_axis

STEP_BYTES = 32
"""One tcgen05.mma consumes 32 bytes of K per row, whatever the element type."""
LANES = 128
"""Rows of tensor memory."""
SCALES_PER_WORD = 4


def multiplier(spec: KernelSpec) -> Tcgen05:
    """The body of the role that multiplies."""
    assert isinstance(spec.math.body, Tcgen05)
    return spec.math.body


def product(spec: KernelSpec) -> UmmaPlan:
    """The instruction, its descriptor and its operands; where accumulators lie is decided later."""
    body = multiplier(spec)
    a, b = spec.operand(body.a), spec.operand(body.b)
    sfa, sfb = (body.scales.a, body.scales.b) if body.scales else (None, None)
    lane_axis: Literal["m", "n"] = "m"
    if body.swap_ab:
        a, b, sfa, sfb, lane_axis = b, a, sfb, sfa, "n"
    call = _call(spec, body, a, b)
    cast_a = bool(spec.prologue)
    of_a = DType.F32 if cast_a else a.dtype
    step_k = STEP_BYTES * 8 // (of_a.bits if cast_a else smem_bits(a, body))
    columns = _check_shape(spec, body, a, b)
    a_major, b_major = majorness(a, lane_axis), majorness(b, column_axis(lane_axis))
    return UmmaPlan(
        instruction=f"tcgen05_mma_cta{body.ctas}_{call}_m{LANES * body.ctas}n{columns}k{step_k}_{of_a}_{b.dtype}",
        call=call,
        rows=LANES * body.ctas,
        columns=columns,
        lane_axis=lane_axis,
        step_k=step_k,
        steps=spec.tile.k // step_k,
        ctas=body.ctas,
        descriptor=instruction_descriptor(call, of_a, b.dtype, LANES * body.ctas, columns, a_major, b_major),
        cast_a=cast_a,
        a=a.name,
        b=b.name,
        a_major=a_major,
        b_major=b_major,
        sfa=sfa,
        sfb=sfb,
        sfa_block=_block(spec, sfa, call) if sfa else 0,
        sfb_block=_block(spec, sfb, call) if sfb else 0,
    )


def column_axis(lane_axis: str) -> Literal["m", "n"]:
    """The output axis on the columns of tensor memory, given the one on its lanes."""
    return "m" if lane_axis == "n" else "n"


def smem_bits(operand: Operand, body: Tcgen05) -> int:
    """Bits an element takes in shared memory."""
    return 8 if operand.dtype == DType.E2M1 and not body.packed else operand.dtype.bits


def _call(
    spec: KernelSpec, body: Tcgen05, a: Operand, b: Operand
) -> Literal["f16", "tf32", "mxf8f6f4", "mxf4", "mxf4nvf4"]:
    types = {a.dtype, b.dtype}
    scales = {spec.operand(name).dtype for name in (body.scales.a, body.scales.b)} if body.scales else set()
    if not scales and types == {DType.BF16}:
        return "f16"
    if not scales and (types == {DType.F32} or spec.prologue):
        return "tf32"
    if scales == {DType.UE8M0X4} and body.packed and types == {DType.E2M1}:
        return "mxf4"
    if scales == {DType.UE4M3X4} and body.packed and types == {DType.E2M1}:
        return "mxf4nvf4"
    if scales == {DType.UE8M0X4} and not body.packed and types <= {DType.E4M3, DType.E5M2, DType.E2M1}:
        return "mxf8f6f4"
    raise ValueError(
        f"no tcgen05 product takes {'packed ' if body.packed else ''}{a.dtype} by {b.dtype} with "
        f"{' and '.join(sorted(scales)) or 'no'} scales; bf16 and f32 take none, 8-bit and mixed types ue8m0x4, "
        "packed e2m1 by e2m1 ue8m0x4 or ue4m3x4"
    )


def _check_shape(spec: KernelSpec, body: Tcgen05, a: Operand, b: Operand) -> int:
    """Refuse tiles that are no instruction shape; returns the columns of the product."""
    extent = {"m": spec.tile.m, "n": spec.tile.n}
    lanes, across = ("n", "m") if body.swap_ab else ("m", "n")
    if extent[lanes] != LANES:
        raise ValueError(
            f"tile.{lanes} is {extent[lanes]}; a CTA's rows fill the {LANES} lanes of tensor memory, so use {LANES}"
        )
    step = 16 * body.ctas
    if extent[across] % step or extent[across] > 256:
        raise ValueError(
            f"tile.{across} is {extent[across]}; with {body.ctas} CTAs it must be a multiple of {step}, at most 256"
        )
    width = spec.tile.k * smem_bits(a, body) // 8
    if width != SWIZZLE_BYTES:
        raise ValueError(f"tile.k is {spec.tile.k} = {width} B of {a.dtype} in shared memory; a row must be 128 B")
    for operand, axis in ((a, lanes), (b, across)):
        if operand.dtype == DType.E2M1 and majorness(operand, axis) == "mn":
            raise ValueError(f"operand {operand.name!r} is {axis}-contiguous; 4-bit operands need k contiguous")
        if operand.dtype == DType.F32 and majorness(operand, axis) == "mn":
            raise ValueError(f"operand {operand.name!r} is {axis}-contiguous; tf32 operands need k contiguous here")
    return extent[across]


def _block(spec: KernelSpec, name: str, call: str) -> int:
    """Elements of k that one scale of an operand covers: a word of four stands for ``k / divisor``."""
    operand = spec.operand(name)
    divisor = next((split_axis(axis)[1] for axis in operand.box if split_axis(axis)[0] == "k"), 0)
    block, allowed = divisor // SCALES_PER_WORD, {"mxf8f6f4": (32, 128), "mxf4": (32,), "mxf4nvf4": (16,)}[call]
    if block not in allowed or divisor % SCALES_PER_WORD:
        axes = [f"k/{each * SCALES_PER_WORD}" for each in allowed]
        raise ValueError(f"scales {name!r} have box {operand.box}; {call} takes words along {' or '.join(axes)}")
    if operand.inner in (axis for axis in operand.box if axis.startswith("k")):
        raise ValueError(f"scales {name!r} are k-contiguous; words come by TMA with m or n contiguous")
    return block
