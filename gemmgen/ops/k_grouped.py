"""Products of groups of k on real tensors: their own rules, and which kernel of the catalog serves a call.

Knows the catalog, tile rules and memory rules; conventions of arguments are in ``api_k_grouped``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from gemmgen import catalog
from gemmgen.ir import DType, Operand
from gemmgen.ops.copies import order_of_scales
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.family import Candidate
from gemmgen.ops.groups import grouped_tail
from gemmgen.ops.k_selection import KSplit, bf16_spec, fp8_apart
from gemmgen.ops.launch import Slots
from gemmgen.ops.problem import Tensors, require
from gemmgen.ops.tail import Tail, accumulates, plain
from gemmgen.runtime.kernel_text import Target

BLOCK = 128
"""Elements of k that a group whose factors are apart has multiples of: a scale's."""
APART = KSplit("counts", BLOCK, True)
LAYOUT = Operand(name=catalog.LAYOUT, dtype=DType.I32, box=("g",))
"""Where each group's k lies."""
KNOWN_AS = {catalog.LAYOUT: "grouped_layout"}
"""What users call it."""
_BF16 = tuple(
    Operand(name=name, dtype=DType.BF16, box=(axis, "k"), major=axis) for name, axis in (("a", "m"), ("b", "n"))
)
_FP8 = tuple(Operand(name=name, dtype=DType.E4M3, box=(axis, "k")) for name, axis in (("a", "m"), ("b", "n")))
_SCALES = tuple(
    Operand(name=f"sf{name}", dtype=DType.F32, box=(axis, "k/128")) for name, axis in (("a", "m"), ("b", "n"))
)


def bf16_call(
    a: torch.Tensor,
    b: torch.Tensor,
    layout: torch.Tensor,
    c: torch.Tensor | None,
    split: KSplit,
    d: torch.Tensor,
    accumulate: bool = False,
) -> tuple[Dispatcher, Slots]:
    """The dispatcher of a call with a [k, m] and b [k, n], and its arguments; to ``accumulate`` takes no C."""
    check_matrices(a=a, b=b)
    c = None if accumulate else c
    return _bf16_dispatcher(d.dtype, c is not None, split, accumulate), _slots((a.mT, b.mT, layout), c, d)


def fp8_apart_call(
    a: torch.Tensor,
    sfa: torch.Tensor,
    b: torch.Tensor,
    sfb: torch.Tensor,
    layout: torch.Tensor,
    c: torch.Tensor | None,
    d: torch.Tensor,
    accumulate: bool = False,
) -> tuple[Dispatcher, Slots]:
    """The dispatcher of a call whose factors lie group by group, flat, and its arguments; scales are [k/128, rows]."""
    check_matrices(sfa=sfa, sfb=sfb)
    require(d.dim() == 3, lambda: f"d: has {d.dim()} dimensions; must be [groups, m, n], a matrix for each group")
    blocks = sfa.shape[0]
    data = tuple(
        _whole(name, tensor, rows, blocks * BLOCK)
        for name, tensor, rows in (("a", a, d.shape[1]), ("b", b, d.shape[2]))
    )
    c = None if accumulate else c
    slots = _slots((data[0], sfa.mT, data[1], sfb.mT, layout), c, d)
    return _fp8_apart_dispatcher(d.dtype, c is not None, accumulate), slots


def blocks_first(
    a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor, m: int, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of flat factors as [k/128, rows], of those that come so, or as [rows, k/128], which DeepGEMM takes.

    Where one factor has as many rows as blocks, its scales are ordered as the other's; if both have, rows are what is
    contiguous.
    """
    sides = (("a", a, sfa, m), ("b", b, sfb, n))
    counts = {name: flat.numel() // (rows * BLOCK) for name, flat, _, rows in sides if rows}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"b: has {b.numel()} elements, {counts['b'] * BLOCK} of k for each of {n} rows, but a has "
            f"{counts['a'] * BLOCK} for each of {m}; they must be equal"
        )
    blocks = next(iter(counts.values()), max(sfa.shape))
    for name, _, scales, rows in sides:
        if tuple(scales.shape) not in ((rows, blocks), (blocks, rows)):
            raise ValueError(
                f"sf{name}: shape is {tuple(scales.shape)}; must be {(rows, blocks)} or {(blocks, rows)}, one for "
                f"{BLOCK} of k of each of {rows} rows, as flat factors have {blocks * BLOCK} of k"
            )
    told = {name: scales.shape[0] == rows for name, _, scales, rows in sides if rows != blocks}
    by_other = next(iter(told.values()), None)

    def turned(name: str, scales: torch.Tensor) -> torch.Tensor:
        rows_first = told.get(name, scales.stride(0) == 1 if by_other is None else by_other)
        return scales.mT if rows_first else scales

    return turned("a", sfa), turned("b", sfb)


def adds_in_place(c: torch.Tensor | None, d: torch.Tensor) -> bool:
    """Whether C is d itself, to which the kernel then adds where it lies."""
    return d.dim() == 3 and accumulates(c, d, grouped_tail(plain(d.dtype, False), "counts").main)


def _slots(factors: Slots, c: torch.Tensor | None, d: torch.Tensor) -> Slots:
    return (*factors, d) if c is None else (*factors, c, d)


def check_matrices(**tensors: torch.Tensor) -> None:
    """Refuse what is no matrix with k first."""
    for name, tensor in tensors.items():
        if tensor.dim() != 2:
            shape = f"[{'k/128' if name.startswith('sf') else 'k'}, {'m' if name.endswith('a') else 'n'}]"
            raise ValueError(f"{name}: has {tensor.dim()} dimensions; must be {shape}, one matrix for all groups")


def _whole(name: str, flat: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """A flat factor as a matrix of as many elements: [rows, k of all groups]."""
    require(
        flat.dim() == 1,
        lambda: f"{name}: has {flat.dim()} dimensions; must be flat, for every group [{rows}, k] one behind the other, "
        f"so pass torch.cat([each.flatten() for each in groups])",
    )
    if flat.stride(0) != 1 and flat.numel() > 1:
        raise ValueError(f"{name}: stride is {flat.stride(0)}; must be contiguous, so pass {name}.contiguous()")
    require(
        flat.shape[0] == rows * k,
        lambda: f"{name}: has {flat.shape[0]} elements; its scales say that k of all groups is {k}, and d that it has "
        f"{rows} rows, so they must be {rows * k}",
    )
    return flat.view(rows, k)


@cache
def _bf16_dispatcher(dtype: torch.dtype, residual: bool, split: KSplit, accumulate: bool) -> Dispatcher:
    tail = grouped_tail(plain(dtype, residual, accumulate), "counts")

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        return Choice(bf16_spec(target, sizes, split, **tail.spec_choices(tensors)))

    return _dispatcher((*_BF16, LAYOUT), tail, choose)


@cache
def _fp8_apart_dispatcher(dtype: torch.dtype, residual: bool, accumulate: bool) -> Dispatcher:
    tail = grouped_tail(plain(dtype, residual, accumulate), "counts")
    operands = (_FP8[0], _SCALES[0], _FP8[1], _SCALES[1])

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        given = tail.spec_choices(tensors)

        @cache
        def picked(order: str) -> Candidate:
            return fp8_apart(target, sizes, APART, order, **given)

        order, copied = order_of_scales(_SCALES, (), tensors, lambda order: picked(order).cost.total)
        return Choice(picked(order).spec, copied)

    return _dispatcher((*operands, LAYOUT), tail, choose)


def _dispatcher(factors: tuple[Operand, ...], tail: Tail, choose: Any) -> Dispatcher:
    return Dispatcher((*factors, *tail.operands), tail.outputs, tail.scalars, choose, known_as=KNOWN_AS)
