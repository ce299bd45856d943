"""From an operator and a problem to the shipped spec that serves it, its own epilogue or another behind the product.

Pure: knows the catalog, the tile rule and what can be lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from gemmgen import catalog
from gemmgen.catalog import FP8, FP8_FP4, FUSED, LAYOUTS, MXFP4, NVFP4, PairShape, Product, Shape, WarpShape
from gemmgen.ir import Arch, DType, Epilogue, KernelSpec
from gemmgen.ops import choice_prenorm, choice_sm100, choice_sm120
from gemmgen.ops.choice import choose
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.errors import UnsupportedArchitecture

PRODUCTS = {
    **{f"fp8_gemm_{layout}": FP8.lying(layout) for layout in LAYOUTS},
    **{f"fp8_fp4_gemm_{layout}": FP8_FP4.lying(layout) for layout in LAYOUTS},
    "mxfp4_gemm_nt": MXFP4,
    "nvfp4_gemm_nt": NVFP4,
}
"""Operators with scales, and the factors that tensor cores multiply and scale when nothing else is said."""
BF16_OPERATORS = tuple(f"bf16_gemm_{layout}" for layout in LAYOUTS)
UNFUSED = (*PRODUCTS, *BF16_OPERATORS)
"""Operators whose every kernel is in the catalog; a fused one takes any tile of its product."""
OPERATORS = (*UNFUSED, *FUSED)
SM90_OPERATORS = ("fp8_gemm_nt", *BF16_OPERATORS, *FUSED)
PRENORM = "tf32_hc_prenorm_gemm"
SCALES_PER_WORD = 4
_S = TypeVar("_S", Shape, PairShape, WarpShape)


def spec_for(
    operator: str,
    m: int,
    n: int,
    k: int,
    sms: int,
    *,
    arch: str = "sm90",
    d: DType = DType.BF16,
    residual: bool = False,
    sfa_major: str = "m",
    sfb_columns: int = 128,
    direct_store: bool = False,
    product: Product | None = None,
    launch_control: bool = False,
    epilogue: Epilogue | None = None,
) -> KernelSpec:
    """The spec for a problem of these extents on a GPU with ``sms`` multiprocessors.

    ``sfa_major`` and ``sfb_columns`` are choices of sm90; ``product`` is one of sm100 and sm120: other factors of the
    operator. ``launch_control`` lets the hardware of sm100 hand out tiles, for a GPU shared with other kernels; run
    such a spec with ``gemmgen.op``. On sm120 factors with scales are k-contiguous in every layout: what lies otherwise
    is turned first. An ``epilogue`` takes the place of the tile's own, among the tiles that it can be lowered for.
    """
    if operator == PRENORM:
        return prenorm_spec(m, n, sms, arch)
    if operator not in OPERATORS:
        raise ValueError(f"operator: {operator!r} is unknown; use one of {', '.join(OPERATORS)}")
    archs = (Arch.SM90, Arch.SM100, Arch.SM120) if operator in SM90_OPERATORS else (Arch.SM100, Arch.SM120)
    if arch not in archs:
        raise UnsupportedArchitecture(f"{operator}: there is no kernel for {arch}; it runs on {' and '.join(archs)}")
    if launch_control and arch != Arch.SM100:
        raise UnsupportedArchitecture(f"launch_control: {arch} hands out no launches, sm100 does; leave it out")
    if operator in FUSED:
        operator, epilogue = catalog.fused_operator(operator, arch)
    if arch == Arch.SM100:
        return _family_sm100(operator, m, n, k, sms, d, residual, direct_store, product, launch_control).serve(epilogue)
    if arch == Arch.SM120:
        return _family_sm120(operator, m, n, k, sms, d, residual, direct_store, product).serve(epilogue)
    choices = (d, residual, sfa_major, sfb_columns, direct_store)
    return _family_sm90(operator, m, n, k, sms, *choices).serve(epilogue)


@dataclass(frozen=True)
class _Family(Generic[_S]):
    """The tiles that may serve a problem, the rule that picks one, and the kernel of each."""

    shapes: tuple[_S, ...]
    choose: Callable[[tuple[_S, ...]], _S]
    make: Callable[[_S], KernelSpec]
    fused: tuple[_S, ...] = ()
    """The tiles as they are with another epilogue, where that differs."""
    others: tuple[_S, ...] = ()
    """Tiles for epilogues that fit none of those."""

    def serve(self, epilogue: Epilogue | None) -> KernelSpec:
        """The kernel of the tile that the rule picks, with another epilogue if there is one."""
        if epilogue is None:
            return self.make(self.choose(self.shapes))
        shapes = self._admitting(self.fused or self.shapes, epilogue) or self._admitting(self.others, epilogue)
        if not shapes:
            first = _refusal(self.make(self.shapes[0]), epilogue)
            raise ValueError(f"epilogue {epilogue.name!r} fits no tile of this operator: {first}")
        return fused(self.make(self.choose(shapes)), epilogue)

    def _admitting(self, shapes: tuple[_S, ...], epilogue: Epilogue) -> tuple[_S, ...]:
        """The tiles that the epilogue can be lowered for."""
        return tuple(shape for shape in shapes if _refusal(self.make(shape), epilogue) is None)


@cache
def fused(spec: KernelSpec, epilogue: Epilogue) -> KernelSpec:
    """The kernel with another epilogue."""
    return epilogue.of(spec)


@cache
def _refusal(spec: KernelSpec, epilogue: Epilogue) -> str | None:
    try:
        kernel_of(fused(spec, epilogue))
    except ValueError as error:
        return str(error)
    return None


def _family_sm90(
    operator: str,
    m: int,
    n: int,
    k: int,
    sms: int,
    d: DType,
    residual: bool,
    sfa_major: str,
    sfb_columns: int,
    direct_store: bool,
) -> _Family[Shape]:
    if operator == "fp8_gemm_nt":
        choices = (d, residual, sfa_major, sfb_columns, direct_store)
        shapes = catalog.fp8_shapes(*choices)
        return _Family(
            shapes,
            lambda shapes: choose(shapes, m, n, k, sms, promoted=True),
            lambda shape: _fp8(shape, *choices),
            tuple(map(catalog.behind, shapes)),
        )
    layout = operator.removeprefix("bf16_gemm_")
    return _Family(
        catalog.bf16_shapes(layout, d, residual, direct_store),
        lambda shapes: choose(shapes, m, n, 2 * k, sms),
        lambda shape: _bf16(layout, shape, d, residual, direct_store),
    )


def _family_sm100(
    operator: str,
    m: int,
    n: int,
    k: int,
    sms: int,
    d: DType,
    residual: bool,
    direct_store: bool,
    product: Product | None,
    take_over: bool,
) -> _Family[PairShape]:
    if operator in PRODUCTS:
        factors = product or PRODUCTS[operator]
        k_bytes = k // 2 if factors.packed else k
        return _Family(
            catalog.scaled_shapes_sm100(factors, d, residual, direct_store),
            lambda shapes: choice_sm100.choose(shapes, m, n, k_bytes, sms, True, take_over),
            lambda shape: _scaled_sm100(factors, shape, d, residual, direct_store),
        )
    layout = operator.removeprefix("bf16_gemm_")
    return _Family(
        catalog.bf16_shapes_sm100(layout, d, residual, direct_store),
        lambda shapes: choice_sm100.choose(shapes, m, n, 2 * k, sms, False, take_over),
        lambda shape: _bf16_sm100(layout, shape, d, residual, direct_store),
    )


def _family_sm120(
    operator: str,
    m: int,
    n: int,
    k: int,
    sms: int,
    d: DType,
    residual: bool,
    direct_store: bool,
    product: Product | None,
) -> _Family[WarpShape]:
    if operator in PRODUCTS:
        turned = (product or PRODUCTS[operator]).lying("nt")
        per_byte = 2 if turned.a.dtype == turned.b.dtype == DType.E2M1 else 1
        word = SCALES_PER_WORD * max(turned.a.block, turned.b.block) // per_byte
        return _Family(
            catalog.scaled_shapes_sm120(turned, d, residual, direct_store),
            lambda shapes: choice_sm120.choose(shapes, m, n, k // per_byte, sms, word),
            lambda shape: _scaled_sm120(turned, shape, d, residual, direct_store),
            others=catalog.WIDE_WARPS_SM120,
        )
    layout = operator.removeprefix("bf16_gemm_")
    return _Family(
        catalog.bf16_shapes_sm120(layout, d, residual, direct_store),
        lambda shapes: choice_sm120.choose(shapes, m, n, 2 * k, sms),
        lambda shape: _bf16_sm120(layout, shape, d, residual, direct_store),
        others=catalog.WIDE_WARPS_SM120,
    )


@cache
def _fp8(shape: Shape, d: DType, residual: bool, sfa_major: str, sfb_columns: int, direct_store: bool) -> KernelSpec:
    return catalog.fp8_gemm_nt(shape, d, residual, sfa_major, sfb_columns, direct_store)


@cache
def _bf16(layout: str, shape: Shape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm(layout, shape, d, residual, direct_store)


@cache
def _bf16_sm100(layout: str, shape: PairShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm_sm100(layout, shape, d, residual, direct_store)


@cache
def _scaled_sm100(product: Product, shape: PairShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.scaled_gemm_sm100(product, shape, d, residual, direct_store)


@cache
def _bf16_sm120(layout: str, shape: WarpShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm_sm120(layout, shape, d, residual, direct_store)


@cache
def _scaled_sm120(product: Product, shape: WarpShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.scaled_gemm_sm120(product, shape, d, residual, direct_store)


@cache
def prenorm_spec(m: int, n: int, sms: int, arch: str, slices: int | None = None) -> KernelSpec:
    """The spec for so many rows and columns; ``slices`` leaves as many partial sums, one for each split of k."""
    if arch not in catalog.PRENORM_COLUMNS:
        archs = " and ".join(catalog.PRENORM_COLUMNS)
        raise UnsupportedArchitecture(f"{PRENORM}: there is no kernel for {arch}; it runs on {archs}")
    widths = catalog.PRENORM_COLUMNS[Arch(arch)]
    columns = next((width for width in widths if n <= width), widths[-1])
    shape = choice_prenorm.choose(catalog.prenorm_forms(Arch(arch), columns), m, sms, slices)
    return catalog.tf32_hc_prenorm_gemm(shape, slices is not None, Arch(arch))
