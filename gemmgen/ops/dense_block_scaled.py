"""Block-scaled products on datacenter Blackwell, on real tensors: types, layouts and scales become a shipped spec.

Knows the catalog's products and memory rules; argument conventions are in ``api_block_scaled``, registration in ``library``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from gemmgen.catalog import Factor, Product
from gemmgen.ir import DType, Operand
from gemmgen.ops.dense import is_k_major, needs_direct_store, output_dtype, outputs
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.memory import check_no_gradient
from gemmgen.ops.problem import Tensors, check_devices, check_problem, check_rank
from gemmgen.ops.scales import BY_SHAPE, Scales
from gemmgen.ops.selection import spec_for
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.kernel_text import Target

TYPES = {torch.float8_e4m3fn: DType.E4M3, torch.int8: DType.E2M1}
SCALES_PER_WORD = 4


@dataclass(frozen=True)
class Call:
    """One call: the tensors, what their scales stand for, and NVFP4's factor, which also says that it is NVFP4."""

    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    c: torch.Tensor | None
    d: torch.Tensor
    recipe: Sequence[int]
    blocked: Sequence[bool]
    alpha: float | None

    def run(self) -> torch.Tensor:
        """d = alpha * (a * sfa) . (b * sfb)^T (+ c)."""
        sizes = self.check()
        if sizes["m"] == 0 or sizes["n"] == 0:
            return self.d
        of_a, of_b = self.scales()
        sfa = of_a.words(self.sfa, sizes["m"], sizes["k"])
        sfb = of_b.words(self.sfb, sizes["n"], sizes["k"])
        after = (self.d,) if self.c is None else (self.c, self.d)
        dispatcher = _dispatcher(self.product(), self.d.dtype, self.c is not None)
        dispatcher((self.a, sfa, self.b, sfb, *after), () if self.alpha is None else (self.alpha,))
        return self.d

    def check(self) -> dict[str, int]:
        """The extents, from what fake and meta tensors have too; scales are judged as they were passed."""
        product, residual = self.product(), self.c is not None
        _check_packing("a", self.a)
        _check_packing("b", self.b)
        tensors = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        check_no_gradient({**present, "sfa": self.sfa, "sfb": self.sfb})
        check_devices({**present, "sfa": self.sfa, "sfb": self.sfb})
        a, _, b, _ = _inputs(product)
        sizes = check_problem((a, b, *outputs(output_dtype(self.d.dtype), residual)), present)
        of_a, of_b = self.scales()
        of_a.check(self.sfa, sizes["m"], sizes["k"])
        of_b.check(self.sfb, sizes["n"], sizes["k"])
        return sizes

    def product(self) -> Product:
        """The factors by type and granularity."""
        a, b = (_dtype(name, tensor) for name, tensor in (("a", self.a), ("b", self.b)))
        return Product(Factor(a, self.recipe[1]), Factor(b, self.recipe[3]))

    def scales(self) -> tuple[Scales, Scales]:
        """How the scales of both factors are read."""
        rows_a, k_a, rows_b, k_b = self.recipe
        if rows_b == BY_SHAPE:
            n = self.b.shape[0]
            per_row = self.sfb.dtype == torch.int32 or (self.sfb.dim() == 2 and n > 1 and self.sfb.shape[0] == n)
            rows_b = 1 if per_row else 128
        return Scales("sfa", (rows_a, k_a), self.blocked[0]), Scales("sfb", (rows_b, k_b), self.blocked[1])


def empty(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised output for a [m, ..] and b [n, ..]."""
    check_rank(Operand(name="a", dtype=DType.E4M3, box=("m", "k")), a)
    check_rank(Operand(name="b", dtype=DType.E4M3, box=("n", "k")), b)
    return torch.empty((a.shape[0], b.shape[0]), dtype=dtype, device=a.device)


def _dtype(name: str, tensor: torch.Tensor) -> DType:
    if tensor.dtype not in TYPES:
        raise TypeError(
            f"{name}: dtype is {tensor.dtype}; must be torch.float8_e4m3fn, or torch.int8, two 4-bit numbers a byte; "
            f"quantise {name}, or pass {name}.view(torch.int8) if it holds such numbers"
        )
    return TYPES[tensor.dtype]


def _check_packing(name: str, tensor: torch.Tensor) -> None:
    """Two 4-bit numbers that share a byte must be neighbours along k: no view can change which ones they are."""
    if tensor.dtype != torch.int8 or tensor.dim() != 2 or tensor.stride(1) == 1 or tensor.shape[1] == 1:
        return
    axis = "m" if name == "a" else "n"
    raise ValueError(
        f"{name}: strides are {tuple(tensor.stride())} as [{axis}, k/2]; 4-bit numbers must be packed along k with k "
        f"contiguous; a transpose of bytes keeps pairs along {axis}, so pass transpose_packed_fp4 of them once, or "
        f"{name}.contiguous() if they are paired along k already"
    )


def _inputs(product: Product) -> tuple[Operand, Operand, Operand, Operand]:
    scale = DType.UE4M3X4 if product.nvfp4 else DType.UE8M0X4
    operands = []
    for name, axis, factor in (("a", "m", product.a), ("b", "n", product.b)):
        operands.append(Operand(name=name, dtype=factor.dtype, box=(axis, "k")))
        box = (axis, f"k/{SCALES_PER_WORD * factor.block}")
        operands.append(Operand(name=f"sf{name}", dtype=scale, box=box, major=axis))
    return operands[0], operands[1], operands[2], operands[3]


@cache
def _dispatcher(product: Product, dtype: torch.dtype, residual: bool) -> Dispatcher:
    d = output_dtype(dtype)
    a, sfa, b, sfb = _inputs(product)

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        _check_architecture(product, target.family)
        lying = replace(product, a_major=_major(a, tensors["a"]), b_major=_major(b, tensors["b"]))
        spec = spec_for(
            f"{lying.operator}_{lying.layout}",
            sizes["m"],
            sizes["n"],
            sizes["k"],
            target.sms,
            arch=target.family,
            d=d,
            residual=residual,
            direct_store=needs_direct_store(d, tensors),
            product=lying,
        )
        return Choice(spec)

    return Dispatcher((a, sfa, b, sfb, *outputs(d, residual)), "d", ("alpha",) if product.nvfp4 else (), choose)


def _major(operand: Operand, tensor: torch.Tensor) -> str:
    return "k" if operand.dtype == DType.E2M1 or is_k_major(operand, tensor) else operand.box[0]


def _check_architecture(product: Product, family: str) -> None:
    if family == "sm100":
        return
    four = [name for name, factor in (("a", product.a), ("b", product.b)) if factor.dtype == DType.E2M1]
    what = f"{' and '.join(four)}: 4-bit numbers" if four else "sfa, sfb: scales that the tensor core applies"
    raise UnsupportedArchitecture(
        f"{what} are multiplied on sm100 only, this is {family}; run it there, or on a GPU without such tensor cores "
        "multiply what cast_back_from_fp4 and cast_back_from_fp8 give with bf16_gemm_nt"
    )
