"""``tf32_hc_prenorm_gemm`` on real tensors: its own rules, and which kernel of the catalog serves a call.

Knows the catalog and memory rules; registration is in ``library``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from gemmgen import catalog
from gemmgen.ir import Arch, DType, Operand
from gemmgen.ops.architecture import family_at
from gemmgen.ops.choice_prenorm import prenorm_spec
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.launch import Slots
from gemmgen.ops.problem import Tensors, require
from gemmgen.ops.settings import now
from gemmgen.ops.whole_numbers import whole_numbers
from gemmgen.runtime.kernel_text import Target

STEP_K, STEP_N = 64, 8
"""What k and n are multiples of; splits of k start at multiples of the first."""
MOST_COLUMNS = 128
"""On any architecture."""
SPLITS_RULE = "must be a whole number from 1, or None to let the call decide"


def _slots(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None
) -> Slots | None:
    """What a kernel is launched with, None where ranks and splits disagree; a single slice is a whole result."""
    if num_splits is None:
        return (a, b, d, sqr_sum) if d.dim() == 2 and sqr_sum.dim() == 1 else None
    if d.dim() != 3 or sqr_sum.dim() != 2 or d.shape[0] != num_splits or sqr_sum.shape[0] != num_splits:
        return None
    return (a, b, d[0], sqr_sum[0]) if num_splits == 1 else (a, b, d, sqr_sum)


def stated_splits(num_splits: Any) -> int | None:
    """How many splits a caller asks for; refuses what is no number, and bools, which torch's dispatcher takes for 1."""
    if num_splits is None or type(num_splits) in (int, torch.SymInt):
        return num_splits  # type: ignore[no-any-return]
    found = None if isinstance(num_splits, bool) else whole_numbers((num_splits,))
    if found is None:
        raise TypeError(f"num_splits: is {num_splits!r}; {SPLITS_RULE}")
    return found[0]


def call(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None
) -> tuple[Dispatcher, Slots]:
    """The dispatcher of a call and its arguments; refuses what only this operator asks for."""
    if num_splits is not None:
        _check_splits(d, sqr_sum, num_splits)
    dispatcher = _dispatcher(num_splits is not None)
    sizes = dispatcher.check((a, b, d, sqr_sum))
    _check_extents(sizes, family_at(a.get_device()))
    require(sqr_sum.is_contiguous(), lambda: _not_contiguous(sqr_sum))
    if num_splits is not None:
        _check_slices(d)
    found = _slots(a, b, d, sqr_sum, num_splits)
    assert found is not None
    return _dispatcher(found[2].dim() == 3), found


def _check_splits(d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int) -> None:
    if num_splits < 1:
        raise ValueError(f"num_splits: is {num_splits}; {SPLITS_RULE}")
    for name, tensor, shape in (("d", d, "[num_splits, m, n]"), ("sqr_sum", sqr_sum, "[num_splits, m]")):
        if tensor.dim() != shape.count(",") + 1 or tensor.shape[0] != num_splits:
            raise ValueError(
                f"{name}: shape is {tuple(tensor.shape)}; with num_splits={num_splits} it must be {shape}, a partial "
                "sum for each split, so allocate it so or leave num_splits out"
            )


def _check_extents(sizes: Mapping[str, int], family: str | None) -> None:
    k, n = sizes["k"], sizes["n"]
    require(
        k > 0 and k % STEP_K == 0,
        lambda: f"a: k is {k}; must be a multiple of {STEP_K} and not 0, so pad a and b with zeros along k",
    )
    most = max(catalog.PRENORM_COLUMNS[Arch(family)]) if family in catalog.PRENORM_COLUMNS else MOST_COLUMNS
    require(
        n > 0 and n % STEP_N == 0 and n <= most,
        lambda: f"b: n is {n}; must be a multiple of {STEP_N} from {STEP_N} to {most}"
        f"{f' on {family}' if family else ''}, so pad b with rows of zeros or split it",
    )


def _not_contiguous(sqr_sum: torch.Tensor) -> str:
    return (
        f"sqr_sum: strides are {tuple(sqr_sum.stride())} for shape {tuple(sqr_sum.shape)}; must be contiguous, so pass "
        "a tensor of its own"
    )


def _check_slices(d: torch.Tensor) -> None:
    """Partial sums may lie in any order, but not on each other."""
    taken = 1
    for size, stride in sorted(zip(d.shape, d.stride(), strict=True), key=lambda each: each[1]):
        if size > 1 and stride < taken:
            raise ValueError(
                f"d: strides are {tuple(d.stride())} for shape {tuple(d.shape)}: elements share memory; pass a tensor "
                "of its own, such as torch.empty(num_splits, m, n)"
            )
        taken += (size - 1) * stride


@cache
def _dispatcher(slices: bool) -> Dispatcher:
    axis = ("s",) if slices else ()
    operands = (
        Operand(name="a", dtype=DType.BF16, box=("m", "k")),
        Operand(name="b", dtype=DType.F32, box=("n", "k")),
        Operand(name="d", dtype=DType.F32, box=(*axis, "m", "n")),
        Operand(name="sqr_sum", dtype=DType.F32, box=(*axis, "m")),
    )

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        sms, fixed = now().sms(target), now().deterministic
        return Choice(prenorm_spec(sizes["m"], sizes["n"], sms, target.family, sizes.get("s"), fixed))

    return Dispatcher(operands, ("d", "sqr_sum"), (), choose)
