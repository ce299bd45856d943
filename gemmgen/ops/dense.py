"""The shipped dense GEMMs on real tensors: which variant of the catalog fits the strides, the output and the scales.

Knows the catalog's choices and memory rules; argument conventions are in ``api``, registration in ``library``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from gemmgen import catalog
from gemmgen.ir import Arch, DType, KernelSpec, Operand
from gemmgen.ops.copies import order_of_scales
from gemmgen.ops.dispatch import Choice, Chooser, Dispatcher
from gemmgen.ops.family import Candidate
from gemmgen.ops.groups import Groups, behind, known_as, of_groups, problem_of
from gemmgen.ops.launch import Slots
from gemmgen.ops.memory import tma_fault
from gemmgen.ops.problem import Tensors, check_rank
from gemmgen.ops.selection import Choices, select, spec_for
from gemmgen.ops.settings import now
from gemmgen.ops.tail import Tail, accumulates, plain
from gemmgen.runtime.kernel_text import Target

_A = {
    DType.E4M3: Operand(name="a", dtype=DType.E4M3, box=("m", "k")),
    DType.BF16: Operand(name="a", dtype=DType.BF16, box=("m", "k")),
}
_B = {
    DType.E4M3: Operand(name="b", dtype=DType.E4M3, box=("n", "k")),
    DType.BF16: Operand(name="b", dtype=DType.BF16, box=("n", "k")),
}
_SFA = Operand(name="sfa", dtype=DType.F32, box=("m", "k/128"))
_SFB = {
    128: Operand(name="sfb", dtype=DType.F32, box=("n/128", "k/128")),
    1: Operand(name="sfb", dtype=DType.F32, box=("n", "k/128")),
}


def fp8_gemm(
    a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor
) -> torch.Tensor:
    """d = (a * sfa) . (b * sfb)^T (+ c)."""
    dispatcher, slots = fp8_call(a, sfa, b, sfb, c, d, _adds_in_place(c, d))
    dispatcher(slots)
    return d


def bf16_gemm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
    """d = a . b^T (+ c)."""
    dispatcher, slots = bf16_call(a, b, c, d, _adds_in_place(c, d))
    dispatcher(slots)
    return d


def fp8_call(
    a: torch.Tensor,
    sfa: torch.Tensor,
    b: torch.Tensor,
    sfb: torch.Tensor,
    c: torch.Tensor | None,
    d: torch.Tensor,
    accumulate: bool = False,
) -> tuple[Dispatcher, Slots]:
    """The dispatcher for these types and scale granularity, and its arguments; to ``accumulate`` takes no C."""
    c = None if accumulate else c
    dispatcher = _fp8_dispatcher(scale_columns(b, sfb), d.dtype, c is not None, accumulate)
    return dispatcher, (a, sfa, b, sfb, d) if c is None else (a, sfa, b, sfb, c, d)


def bf16_call(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, accumulate: bool = False
) -> tuple[Dispatcher, Slots]:
    """The dispatcher for these types, and its arguments; to ``accumulate`` takes no C."""
    c = None if accumulate else c
    dispatcher = _bf16_dispatcher(d.dtype, c is not None, accumulate)
    return dispatcher, (a, b, d) if c is None else (a, b, c, d)


def _adds_in_place(c: torch.Tensor | None, d: torch.Tensor) -> bool:
    """Whether C is d itself, to which the kernel then adds where it lies."""
    return d.dim() == 2 and accumulates(c, d, plain(d.dtype, False).main)


def scale_columns(b: torch.Tensor, sfb: torch.Tensor) -> int:
    """Columns of the output per scale of B, by the shape of the scales: 1 for [.., n, k/128], else 128."""
    n = b.shape[-2] if b.dim() >= 2 else 0
    return 1 if sfb.dim() == b.dim() and n > 1 and sfb.shape[-2] == n else 128


def empty(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised output for a [m, k] and b [n, k]."""
    check_rank(_A[DType.BF16], a)
    check_rank(_B[DType.BF16], b)
    return torch.empty((a.shape[0], b.shape[0]), dtype=dtype, device=a.device)


def as_given(name: str, axis: str, tensor: torch.Tensor) -> Operand:
    """A bf16 factor as an operand of its own axis and k."""
    return Operand(name=name, dtype=DType.BF16, box=(axis, "k"))


@cache
def _fp8_dispatcher(columns: int, dtype: torch.dtype, residual: bool, accumulate: bool) -> Dispatcher:
    return fp8_dispatcher(columns, plain(dtype, residual, accumulate))


@cache
def _bf16_dispatcher(dtype: torch.dtype, residual: bool, accumulate: bool) -> Dispatcher:
    return bf16_dispatcher(plain(dtype, residual, accumulate))


def fp8_dispatcher(columns: int, tail: Tail, groups: Groups | None = None) -> Dispatcher:
    """Calls with fp32 scales, one for so many columns of the product, and what follows it."""
    a, sfa, b, sfb = of_groups(groups, (_A[DType.E4M3], _SFA, _B[DType.E4M3], _SFB[columns]))
    boxed, plain = ((sfa, sfb), ()) if columns == 1 else ((sfa,), (sfb,))

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        problem, given = problem_of(groups, sizes), tail.spec_choices(tensors)
        extents = {axis: problem.pop(axis) for axis in ("m", "n", "k")}
        sms = now().sms(target)
        given |= {"arch": target.family, "card": target.card, "sfb_columns": columns, **problem}

        @cache
        def picked(order: str) -> Candidate:
            return select("fp8_gemm_nt", **extents, sms=sms, choices=Choices(sfa_major=order, **given)).picked

        order, copied = order_of_scales(boxed, plain, tensors, lambda order: picked(order).cost.total)
        return Choice(_started(picked(order).spec, groups), copied)

    return _dispatcher((a, sfa, b, sfb), tail, groups, choose)


def bf16_dispatcher(tail: Tail, groups: Groups | None = None) -> Dispatcher:
    """Calls in bf16 of any layout, and what follows the product."""
    a, b = of_groups(groups, (_A[DType.BF16], _B[DType.BF16]))

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        layout = ("n" if is_k_major(a, tensors["a"]) else "t") + ("t" if is_k_major(b, tensors["b"]) else "n")
        spec = spec_for(
            f"bf16_gemm_{layout}",
            sms=now().sms(target),
            arch=target.family,
            card=target.card,
            **tail.spec_choices(tensors),
            **problem_of(groups, sizes),
        )
        return Choice(_started(spec, groups))

    return _dispatcher((a, b), tail, groups, choose)


def _dispatcher(factors: tuple[Operand, ...], tail: Tail, groups: Groups | None, choose: Chooser) -> Dispatcher:
    operands = (*factors, *behind(groups, tail))
    return Dispatcher(operands, tail.outputs, tail.scalars, choose, tail.gated, known_as(groups))


def _started(spec: KernelSpec, groups: Groups | None) -> KernelSpec:
    """The kernel as the process has it start: with ``set_pdl`` early, on sm90."""
    return _early(spec) if now().early and groups is None and spec.arch == Arch.SM90 else spec


_early = cache(catalog.starting_early)


def is_k_major(operand: Operand, tensor: torch.Tensor) -> bool:
    """Whether to read an operand along k: when TMA can, or when it cannot read it the other way either."""
    axis = operand.plane[0]
    if tma_fault(operand, tensor) is None:
        return True
    return tma_fault(operand.replace(major=axis), tensor) is not None and tensor.stride(operand.box.index(axis)) != 1
