"""The ``gemmgen`` namespace of ``torch.library``: schemas, implementations and fake kernels.

Every operator exists twice: a form that returns a new tensor, and ``..._out``, which mutates ``d`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gemmgen.ops import dense, dense_block_scaled, k_grouped, k_grouped_scaled, prenorm
from gemmgen.ops.k_selection import KSplit
from gemmgen.runtime.preparation import current_preparation

NAMESPACE = "gemmgen"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
# Compilers must hand over tensors with the strides they have in eager mode: they decide which kernel runs.
TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack


def define(name: str, signature: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register an operator and return its callable overload."""
    LIBRARY.define(f"{name}{signature}", tags=TAGS)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, implementation, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def is_plain(tensors: Sequence[Any]) -> bool:
    """Whether torch's dispatcher could only pick the device: plain tensors, and nobody tracing or intercepting."""
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN or tensor.is_neg():
            return False
    return not _dispatch_modes() and _functorch_level() is None


def is_direct(tensors: Sequence[Any]) -> bool:
    """Whether torch's dispatcher has nothing to add: as :func:`is_plain`, with CUDA tensors.

    Meta tensors count as such while kernels are prepared: the registered operators would check them and no more.
    """
    if not is_plain(tensors):
        if _functorch_level() is not None and not torch.compiler.is_compiling():
            _check_no_transform_differentiates(tensors)
        return False
    return all(tensor.is_cuda for tensor in tensors) or (
        current_preparation() is not None and all(tensor.is_meta for tensor in tensors)
    )


def _check_no_transform_differentiates(tensors: Sequence[Any]) -> None:
    """Refuse what transforms of functions hide from a kernel: it would be asked for no gradient, and theirs were 0."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and (
            tensor.requires_grad or forward_ad.unpack_dual(tensor).tangent is not None
        ):
            raise RuntimeError(
                "torch.func.grad, jvp and the like ask for a derivative, but this operator has none; pass detached "
                "tensors"
            )


def written(d: torch.Tensor) -> None:
    """Tell autograd that ``d`` changed, so that a graph which saved it notices."""
    if not d.is_inference():
        torch.autograd.graph.increment_version(d)


# ------------------------------------------------------------------------------------------------- shipped operators


def _fp8(a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, c: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    return dense.fp8_gemm(a, sfa, b, sfb, c, dense.empty(a, b, out_dtype))


def _fp8_out(a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, c: Tensor | None, d: Tensor) -> None:
    dense.fp8_gemm(a, sfa, b, sfb, c, d)
    written(d)


def _fp8_fake(a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, c: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    d = dense.empty(a, b, out_dtype)
    _fp8_out_fake(a, sfa, b, sfb, c, d)
    return d


def _fp8_out_fake(a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, c: Tensor | None, d: Tensor) -> None:
    dispatcher, slots = dense.fp8_call(a, sfa, b, sfb, c, d)
    dispatcher.check(slots)


def _bf16(a: Tensor, b: Tensor, c: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    return dense.bf16_gemm(a, b, c, dense.empty(a, b, out_dtype))


def _bf16_out(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor) -> None:
    dense.bf16_gemm(a, b, c, d)
    written(d)


def _bf16_fake(a: Tensor, b: Tensor, c: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    d = dense.empty(a, b, out_dtype)
    _bf16_out_fake(a, b, c, d)
    return d


def _bf16_out_fake(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor) -> None:
    dispatcher, slots = dense.bf16_call(a, b, c, d)
    dispatcher.check(slots)


def _scaled(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    c: Tensor | None,
    recipe: Sequence[int],
    blocked: Sequence[bool],
    alpha: float | None,
    out_dtype: torch.dtype,
) -> Tensor:
    d = dense_block_scaled.empty(a, b, out_dtype)
    dense_block_scaled.call(a, sfa, b, sfb, c, d, recipe, blocked, alpha).run()
    return d


def _scaled_fake(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    c: Tensor | None,
    recipe: Sequence[int],
    blocked: Sequence[bool],
    alpha: float | None,
    out_dtype: torch.dtype,
) -> Tensor:
    d = dense_block_scaled.empty(a, b, out_dtype)
    dense_block_scaled.call(a, sfa, b, sfb, c, d, recipe, blocked, alpha).check()
    return d


def _scaled_out(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    c: Tensor | None,
    recipe: Sequence[int],
    blocked: Sequence[bool],
    alpha: float | None,
    d: Tensor,
) -> None:
    dense_block_scaled.call(a, sfa, b, sfb, c, d, recipe, blocked, alpha).run()
    written(d)


def _scaled_out_fake(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    c: Tensor | None,
    recipe: Sequence[int],
    blocked: Sequence[bool],
    alpha: float | None,
    d: Tensor,
) -> None:
    dense_block_scaled.call(a, sfa, b, sfb, c, d, recipe, blocked, alpha).check()


def prenorm_gemm(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor, num_splits: int | None) -> None:
    """What ``tf32_hc_prenorm_gemm`` does on real tensors."""
    dispatcher, slots = prenorm.call(a, b, d, sqr_sum, num_splits)
    dispatcher(slots)
    written(d)
    written(sqr_sum)


def _prenorm_fake(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor, num_splits: int | None) -> None:
    prenorm.call(a, b, d, sqr_sum, num_splits)


def k_grouped_bf16(a: Tensor, b: Tensor, layout: Tensor, c: Tensor | None, by: str, alignment: int, d: Tensor) -> None:
    """What ``k_grouped_bf16_gemm_tn_contiguous`` does on real tensors."""
    accumulate = k_grouped.adds_in_place(c, d)
    dispatcher, slots = k_grouped.bf16_call(a, b, layout, c, KSplit(by, alignment), d, accumulate)
    dispatcher(slots)
    written(d)


def _k_grouped_bf16_fake(
    a: Tensor, b: Tensor, layout: Tensor, c: Tensor | None, by: str, alignment: int, d: Tensor
) -> None:
    dispatcher, slots = k_grouped.bf16_call(a, b, layout, c, KSplit(by, alignment), d)
    dispatcher.check(slots)


def k_grouped_fp8_apart(
    a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, layout: Tensor, c: Tensor | None, d: Tensor
) -> None:
    """What ``k_grouped_fp8_gemm_nt_contiguous`` does on real tensors."""
    accumulate = k_grouped.adds_in_place(c, d)
    dispatcher, slots = k_grouped.fp8_apart_call(a, sfa, b, sfb, layout, c, d, accumulate)
    dispatcher(slots)
    written(d)


def _k_grouped_fp8_apart_fake(
    a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, layout: Tensor, c: Tensor | None, d: Tensor
) -> None:
    dispatcher, slots = k_grouped.fp8_apart_call(a, sfa, b, sfb, layout, c, d)
    dispatcher.check(slots)


def k_grouped_scaled_gemm_run(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    layout: Tensor,
    c: Tensor | None,
    ks: Sequence[int],
    gran: int,
    by: str,
    alignment: int,
    d: Tensor,
) -> None:
    """What ``k_grouped_fp8_gemm_tn_contiguous`` does on real tensors."""
    k_grouped_scaled.Call(a, sfa, b, sfb, layout, c, d, ks, gran, KSplit(by, alignment)).run()
    written(d)


def _k_grouped_scaled_fake(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    layout: Tensor,
    c: Tensor | None,
    ks: Sequence[int],
    gran: int,
    by: str,
    alignment: int,
    d: Tensor,
) -> None:
    k_grouped_scaled.Call(a, sfa, b, sfb, layout, c, d, ks, gran, KSplit(by, alignment)).check()


_FP8_INPUTS = "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor? c"
_BF16_INPUTS = "Tensor a, Tensor b, Tensor? c"
fp8_gemm_nt = define("fp8_gemm_nt", f"({_FP8_INPUTS}, ScalarType out_dtype) -> Tensor", _fp8, _fp8_fake)
fp8_gemm_nt_out = define("fp8_gemm_nt_out", f"({_FP8_INPUTS}, Tensor(d!) d) -> ()", _fp8_out, _fp8_out_fake)
bf16_gemm_nt = define("bf16_gemm_nt", f"({_BF16_INPUTS}, ScalarType out_dtype) -> Tensor", _bf16, _bf16_fake)
bf16_gemm_nt_out = define("bf16_gemm_nt_out", f"({_BF16_INPUTS}, Tensor(d!) d) -> ()", _bf16_out, _bf16_out_fake)
_SCALED_INPUTS = f"{_FP8_INPUTS}, int[] recipe, bool[] blocked, float? alpha"
block_scaled_gemm = define(
    "block_scaled_gemm", f"({_SCALED_INPUTS}, ScalarType out_dtype) -> Tensor", _scaled, _scaled_fake
)
block_scaled_gemm_out = define(
    "block_scaled_gemm_out", f"({_SCALED_INPUTS}, Tensor(d!) d) -> ()", _scaled_out, _scaled_out_fake
)
tf32_hc_prenorm_gemm = define(
    "tf32_hc_prenorm_gemm",
    "(Tensor a, Tensor b, Tensor(d!) d, Tensor(s!) sqr_sum, int? num_splits) -> ()",
    prenorm_gemm,
    _prenorm_fake,
)
_K_GROUPED_TAIL = "Tensor layout, Tensor? c"
k_grouped_bf16_gemm = define(
    "k_grouped_bf16_gemm",
    f"(Tensor a, Tensor b, {_K_GROUPED_TAIL}, str by, int alignment, Tensor(d!) d) -> ()",
    k_grouped_bf16,
    _k_grouped_bf16_fake,
)
k_grouped_fp8_apart_gemm = define(
    "k_grouped_fp8_apart_gemm",
    f"(Tensor a, Tensor sfa, Tensor b, Tensor sfb, {_K_GROUPED_TAIL}, Tensor(d!) d) -> ()",
    k_grouped_fp8_apart,
    _k_grouped_fp8_apart_fake,
)
k_grouped_scaled_gemm = define(
    "k_grouped_scaled_gemm",
    f"(Tensor a, Tensor sfa, Tensor b, Tensor sfb, {_K_GROUPED_TAIL}, int[] ks, int gran, str by, int alignment, "
    "Tensor(d!) d) -> ()",
    k_grouped_scaled_gemm_run,
    _k_grouped_scaled_fake,
)


__all__ = [
    "bf16_gemm_nt",
    "bf16_gemm_nt_out",
    "block_scaled_gemm",
    "block_scaled_gemm_out",
    "fp8_gemm_nt",
    "fp8_gemm_nt_out",
    "k_grouped_bf16_gemm",
    "k_grouped_fp8_apart_gemm",
    "k_grouped_scaled_gemm",
    "tf32_hc_prenorm_gemm",
]
