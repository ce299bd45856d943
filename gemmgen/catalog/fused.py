"""Epilogues that ship as operators of their own, and the kernels of theirs that are written out to be read.

The operators may take any tile of the product behind which the epilogue stands; two or three of each are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from gemmgen.catalog import dense, dense_sm100, dense_sm120, shipped_sm100, shipped_sm120
from gemmgen.catalog.finished import FINISHED, finish_of
from gemmgen.catalog.shapes_sm120 import SQUARE, WIDE_WARPS_SM120
from gemmgen.ir import (
    Activation,
    Arch,
    Bias,
    Cast,
    DType,
    Epilogue,
    Gate,
    HeadSplit,
    KernelSpec,
    Operand,
    Quantise,
    Store,
)

_SM90 = (
    dense.Shape(64, 128, groups=1),
    dense.Shape(128, 128, unroll=4, staging=4),
    dense.Shape(128, 256, width=128, unroll=1, rounds=True, strips=32, raster=16),
)
_SM90_BF16 = (dense.Shape(64, 128, groups=1), dense.Shape(128, 256, unroll=1, raster=16))
_SM100 = (dense_sm100.PairShape(128), dense_sm100.PairShape(256, ctas=2))


def behind(shape: dense.Shape, epilogue: Epilogue | None = None) -> dense.Shape:
    """An sm90 tile with another epilogue behind it: its loop is short enough that both compile in about a second.

    Products of the next tile stay beside an epilogue that only rounds what they sum, relu or not, from a bias or not,
    and to two bytes if they are side by side; longer ones have no registers for them. Beside quantising they were up to
    4 % faster one above the other, and up to 40 % slower side by side. Not all can be cut. Scales of a gate's columns
    are held by a ring, and where its halves of n lie apart, by that of the factors.
    """
    tall = shape.m > shape.n
    beside = epilogue is not None and (
        (_only_rounds(epilogue) and (tall or _narrows(epilogue))) or (tall and _quantises(epilogue))
    )
    overlap = shape.overlap and beside
    lanes = shape.lanes and not (epilogue is not None and epilogue.gated)
    apart = epilogue is not None and any(isinstance(step, Gate) and step.layout == "halves" for step in epilogue.steps)
    strips = 1 if apart else shape.strips
    return replace(shape, unroll=min(shape.unroll, 4), overlap=overlap, cut=1, lanes=lanes, strips=strips)


def _narrows(epilogue: Epilogue) -> bool:
    return any(isinstance(step, Cast) and step.to.bits <= 16 for step in epilogue.steps)


def _only_rounds(epilogue: Epilogue) -> bool:
    steps = list(epilogue.steps)
    if isinstance(steps[0], Bias):
        steps = steps[1:]
    if isinstance(steps[0], Activation) and steps[0].function == "relu":
        steps = steps[1:]
    return all(isinstance(step, Cast | Store) for step in steps)


def _quantises(epilogue: Epilogue) -> bool:
    return all(isinstance(step, Quantise) for step in epilogue.steps)


@cache
def mxfp8_output(words: bool) -> Epilogue:
    """e4m3 with a power of two for 32 columns; scales row by row, or four a word along m, as a product reads them."""
    if words:
        return _quantised("mxfp8out_words", Operand(name="d_sf", dtype=DType.UE8M0X4, box=("m", "n/128"), major="m"))
    return _quantised("mxfp8out", Operand(name="d_sf", dtype=DType.UE8M0, box=("m", "n/32")))


@cache
def fp8_output(major: str) -> Epilogue:
    """e4m3 with an fp32 scale for 128 columns, contiguous along m (as sm90 reads them) or n."""
    scales = Operand(name="d_sf", dtype=DType.F32, box=("m", "n/128"), major=major)
    return _quantised("fp8out" if major == "m" else "fp8out_rows", scales)


@cache
def head_split_output(dtype: DType, heads: HeadSplit) -> Epilogue:
    """Rounded columns with a gap in the middle of every head; heads are constants of the kernel."""
    d = Operand(name="d", dtype=dtype, box=("m", "n"), heads=heads)
    name = f"heads_{heads.left}_{heads.mid}_{heads.right}_{dtype}"
    return Epilogue(name=name, operands=(d,), steps=(Cast(to=dtype), Store(to=d.name)))


def _quantised(name: str, scales: Operand) -> Epilogue:
    data = Operand(name="d_fp8", dtype=DType.E4M3, box=("m", "n"))
    return Epilogue(name=name, operands=(data, scales), steps=(Quantise(to=data.name, scales=scales.name),))


FUSED = tuple(f"{product}_{label}" for product in ("fp8_gemm_nt", "bf16_gemm_nt") for label in ("mxfp8out", "fp8out"))
"""Operators that are a product and one of these epilogues."""


def fused_operator(name: str, arch: str) -> tuple[str, Epilogue]:
    """The product of a fused operator or a finished one, and the epilogue it has unless its output says otherwise."""
    if name in FINISHED:
        return FINISHED[name]
    product, _, label = name.rpartition("_")
    return product, fp8_output("m") if label == "fp8out" else mxfp8_output(words=arch != Arch.SM90)


def operators_of(product: str, epilogue: Epilogue | None) -> tuple[str, ...]:
    """Names of a product with this epilogue, the closest first: if it is a fused or finished one, that, and its own."""
    if epilogue is None:
        return (product,)
    name = f"{product}_{_quantising().get(epilogue) or finish_of(epilogue)}"
    return (name, product) if name in FUSED or name in FINISHED else (product,)


@cache
def _quantising() -> dict[Epilogue, str]:
    mxfp8 = {mxfp8_output(words): "mxfp8out" for words in (False, True)}
    return mxfp8 | {fp8_output(major): "fp8out" for major in ("m", "n")}


def with_usual_scales(kernel: str) -> str:
    """Name of a fused operator's kernel, whichever way its scales lie."""
    return re.sub("_(mxfp8out_words|fp8out_rows)_", lambda found: f"_{found[1].partition('_')[0]}_", kernel)


@cache
def fused_specs() -> dict[str, KernelSpec]:
    """Every listed kernel of these operators by name."""
    return {spec.name: spec for spec in _shipped()}


def _shipped() -> Iterator[KernelSpec]:
    for shape in _SM90:
        for epilogue in (mxfp8_output(False), fp8_output("m")):
            yield epilogue.of(dense.fp8_gemm_nt(shape))
    for shape in _SM90_BF16:
        wide = shape.n <= 128 or shape.width == 128
        for epilogue in (mxfp8_output(False), fp8_output("m")) if wide else (mxfp8_output(False),):
            yield epilogue.of(dense.bf16_gemm("nt", shape))
    for pair in _SM100:
        for epilogue in (mxfp8_output(True), fp8_output("m")):
            yield epilogue.of(shipped_sm100.scaled_gemm_sm100(shipped_sm100.FP8, pair))
            yield epilogue.of(dense_sm100.bf16_gemm("nt", pair))
    for tile, epilogue in ((SQUARE, mxfp8_output(True)), (WIDE_WARPS_SM120[0], fp8_output("m"))):
        yield epilogue.of(shipped_sm120.scaled_gemm_sm120(shipped_sm100.FP8, tile))
        yield epilogue.of(dense_sm120.bf16_gemm("nt", tile))
