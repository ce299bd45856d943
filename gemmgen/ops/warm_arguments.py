"""Arguments of every operator for a problem, on the meta device: shapes, types and strides as callers mostly have them.

Knows the operators' conventions; nothing here has memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemmgen.ops import api, api_block_scaled, api_fused, api_grouped, api_heads, api_k_grouped
from gemmgen.ops.architecture import SCALING
from gemmgen.ops.groups import GROUPED_NAME
from gemmgen.ops.product_op import ProductOp
from gemmgen.ops.scaled_call import FP4
from gemmgen.ops.scales import Gran, granularity, stated
from gemmgen.ops.tensor_op import empty_output
from gemmgen.ops.whole_numbers import at_least

OPERATORS: dict[str, Any] = {
    name: function
    for room in (api, api_block_scaled, api_fused, api_heads, api_grouped, api_k_grouped)
    for name, function in vars(room).items()
    if inspect.isfunction(function) and "gemm" in name and function.__module__ == room.__name__
}
"""The functions that kernels can be prepared for, by name; some have two."""
BF16, F32, E4M3, E2M1 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8
EXTRA: dict[str, dict[str, Any]] = {
    "fp8": {"scales": "m", "a": E4M3, "b": E4M3},
    "fp8_fp4": {"a": E4M3, "b": E2M1},
}
"""Choices beside an operator's own parameters by the beginning of its name, with their defaults: what fp32 scales of a
are contiguous along, and the factors' types."""
NUM_GROUPS = 8
"""Groups, unless ``num_groups`` chooses."""
K_GROUPED = "k_grouped_"
"""How operators of groups of k begin, which share k and write a matrix for each group."""
Factor = Any
"""A tensor, or a pair of data and scales."""


def call_arguments(op: str, family: str, m: int, n: int, k: int, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name. Where the operator takes a tensor, a choice is its dtype; others are passed as they are."""
    function = OPERATORS[op]
    op = function.__name__
    known, extra = list(inspect.signature(function).parameters), _extra(op)
    _check_names(op, choices, [*known, *extra])
    given = {name: value for name, value in choices.items() if name not in extra}
    if op.startswith(K_GROUPED):
        return {**given, **_k_grouped(op, m, n, k, choices)}
    dense = GROUPED_NAME.sub(r"\g<product>\g<output>", op)
    a, b = _factors(dense, family, m, n, k, {**extra, **choices})
    tensors = {"a": a, "b": b, **_others(dense, m, n, given)}
    if dense != op:
        tensors = _in_groups(op, tensors, m, choices)
        given = {name: None for name in known if name in ("d", "d_fp8", "d_sf")} | given
    return {**{name: value for name, value in given.items() if name not in tensors}, **tensors}


def _in_groups(op: str, tensors: Mapping[str, Any], m: int, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a dense product as one of row groups takes them, with the layout of groups."""
    count, masked = _groups(choices), "masked" in op
    of_each = ("b", "bias", *(("a", "d") if masked else ()))
    by_ids = not masked and not choices.get("use_psum_layout") and not choices.get("offsets")
    layout = _empty(m if by_ids else count, dtype=torch.int32)
    grouped = {name: _of_each(value, count) if name in of_each else value for name, value in tensors.items()}
    return {**grouped, "masked_m" if masked else "grouped_layout": layout}


def _k_grouped(op: str, m: int, n: int, k: int, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Factors of all groups, one behind the other along k, and fp32 sums which they are added to where those lie."""
    count = _groups(choices)
    d = _empty(count, m, n, dtype=choices.get("d", F32))
    added = choices.get("c", True)
    c = d if added is True else _empty(*d.shape, dtype=added) if added else None
    a, b = (_k_factor(op, rows, k, choices) for rows in (m, n))
    layout = _empty(count, dtype=torch.int32)
    return {"a": a, "b": b, "d": d, "c": c, "ks_cpu": None, "grouped_layout": layout}


def _k_factor(op: str, rows: int, k: int, choices: Mapping[str, Any]) -> Factor:
    """[k, rows], with words of scales of as many columns; or flat where each group's is a matrix of its own along k."""
    if "bf16" in op:
        return _empty(k, rows, dtype=BF16)
    if "_nt_" in op:
        return _empty(rows * k, dtype=E4M3), _empty(-(-k // 128), rows, dtype=F32)
    _, k_gran = _granularity(0, choices)
    return _empty(k, rows, dtype=E4M3), _empty(-(-k // (4 * k_gran)), rows, dtype=torch.int32)


def _of_each(value: Any, count: int) -> Any:
    """A tensor, or each of a pair, once for every group, one behind the other."""
    if isinstance(value, tuple):
        return tuple(_of_each(part, count) for part in value)
    span = max((size * stride for size, stride in zip(value.shape, value.stride(), strict=True)), default=1)
    return _empty(count * span, dtype=value.dtype).as_strided((count, *value.shape), (span, *value.stride()))


def _groups(choices: Mapping[str, Any]) -> int:
    return at_least(0, "num_groups", choices.get("num_groups", NUM_GROUPS), f"{NUM_GROUPS} groups")


def fused_arguments(op: ProductOp, family: str, m: int, n: int, k: int, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an author's epilogue behind a product; its own operands are contiguous, its numbers 1."""
    extra, dense = _extra(op.operator), GROUPED_NAME.sub(r"\g<product>", op.operator)
    own = {"a", "b", *(each.name for each in op.operands)}
    _check_names(op.__name__, choices, [*(name for name in op.__signature__.parameters if name not in own), *extra])
    given = {name: value for name, value in choices.items() if name not in extra}
    a, b = _factors(dense, family, m, n, k, {**extra, **choices})
    factors = {"a": a, "b": b}
    if dense != op.operator:
        factors = _in_groups(op.operator, factors, m, choices)
    sizes = {"m": m, "n": n, "k": k, "g": _groups(choices)}
    inputs = [each for each in op.tail.operands if each.name in op.inputs]
    tensors = {each.name: empty_output(each, sizes, torch.device("meta")) for each in inputs}
    return {**given, **factors, **tensors, **dict.fromkeys(op.tail.scalars, 1.0)}


def _extra(op: str) -> dict[str, Any]:
    dense = GROUPED_NAME.sub(r"\g<product>\g<output>", op)
    begins = max((begin for begin in EXTRA if dense.startswith(f"{begin}_gemm")), key=len, default=None)
    grouped = dense != op or op.startswith(K_GROUPED)
    return {**(EXTRA[begins] if begins else {}), **({"num_groups": NUM_GROUPS} if grouped else {})}


def _check_names(op: str, choices: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in choices:
        if name not in known:
            raise TypeError(f"{name}: unknown choice; {op} is chosen by {', '.join(known)}")


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _others(op: str, m: int, n: int, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors beside the factors: those that were chosen, and those that are never left out."""
    if op == "tf32_hc_prenorm_gemm":
        splits = given.get("num_splits")
        first = () if splits is None else (splits,)
        return {"d": _empty(*first, m, n, dtype=F32), "sqr_sum": _empty(*first, m, dtype=F32)}
    if op == "fp8_gemm_nt_skip_head_mid":
        left, mid, right = given.get("head_splits", (n, 0, 0))
        return {"d": _empty(m, n + n // max(1, left + right) * mid, dtype=given.get("d") or BF16)}
    tensors: dict[str, torch.Tensor] = {}
    kind = given.get("d") or given.get("out_dtype") or BF16
    columns = n // 2 if given.get("gate") else n
    for name, shape in (("d", (m, columns)), ("c", (m, n))):
        if given.get(name):
            tensors[name] = _empty(*shape, dtype=kind if given[name] is True else given[name])
    if given.get("bias"):
        tensors["bias"] = _empty(n, dtype=F32 if given["bias"] is True else given["bias"])
    return tensors


def _factors(op: str, family: str, m: int, n: int, k: int, choices: Mapping[str, Any]) -> tuple[Factor, Factor]:
    product, layout = (op.split("_gemm_") if "_gemm_" in op else (op, "nt"))[:2]
    turned = layout[0] == "t", layout[1] == "n"
    if product == "tf32_hc_prenorm_gemm":
        return _empty(m, k, dtype=BF16), _empty(n, k, dtype=F32)
    if product == "bf16":
        return _matrix(m, k, BF16, turned[0]), _matrix(n, k, BF16, turned[1])
    if product in ("mxfp4", "nvfp4"):
        return _four_bit(product, m, k), _four_bit(product, n, k)
    types = choices.get("a", E4M3), choices.get("b", E4M3)
    scaled = _words if family in SCALING or any(dtype in FP4 for dtype in types) else _numbers
    a, b = (
        scaled(side, rows, k, dtype, turn, choices)
        for side, rows, dtype, turn in zip((0, 1), (m, n), types, turned, strict=True)
    )
    return a, b


def _matrix(rows: int, k: int, dtype: torch.dtype, turned: bool) -> torch.Tensor:
    """Contiguous as it is passed: [rows, k], or [k, rows] where the operator's layout has it so."""
    return _empty(k, rows, dtype=dtype) if turned else _empty(rows, k, dtype=dtype)


def _numbers(side: int, rows: int, k: int, dtype: torch.dtype, turned: bool, choices: Mapping[str, Any]) -> Factor:
    """Data along k and fp32 scales, a's along m or along k as ``scales`` says, b's one for 128 rows or for each."""
    per_row = side == 0 or ((found := stated(*_recipes(choices))) is not None and found[2] == 1)
    along_rows = per_row and choices.get("scales", "m") == "m"
    scale_rows, columns = rows if per_row else -(-rows // 128), -(-k // 128)
    scales = _along_rows(scale_rows, columns, F32) if along_rows else _empty(scale_rows, columns, dtype=F32)
    data = _empty(rows, k, dtype=dtype)
    return (data.mT, scales.mT) if turned else (data, scales)


def _words(side: int, rows: int, k: int, dtype: torch.dtype, turned: bool, choices: Mapping[str, Any]) -> Factor:
    """Data and words of four scales contiguous along rows, as tensor cores read them; fp32 for blocks of rows."""
    gran, k_gran = _granularity(side, choices)
    if gran == 1:
        scales = _along_rows(rows, -(-k // (4 * k_gran)), torch.int32)
    else:
        scales = _empty(-(-rows // gran), -(-k // k_gran), dtype=F32)
    if dtype in FP4:
        data = _empty(rows, -(-k // 128) * 64, dtype=dtype)[:, : k // 2]  # which may lie beside an 8-bit factor
        return (data.mT, scales.mT) if turned else (data, scales)
    return _matrix(rows, k, dtype, turned), scales.mT if turned else scales


def _granularity(side: int, choices: Mapping[str, Any]) -> Gran:
    """Rows and elements of k that share a scale of a factor, by default one row and 128."""
    found = granularity(*_recipes(choices))
    return (1, 128) if found is None else found[:2] if side == 0 else found[2:]


def _recipes(choices: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return choices.get("recipe"), choices.get("recipe_a"), choices.get("recipe_b")


def _along_rows(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Contiguous along rows, columns 16 bytes apart."""
    step = 16 // dtype.itemsize
    return torch.empty_strided((rows, columns), (1, -(-rows // step) * step), dtype=dtype, device="meta")


def _four_bit(product: str, rows: int, k: int) -> Factor:
    group, dtype = (32, torch.float8_e8m0fnu) if product == "mxfp4" else (16, E4M3)
    return _empty(rows, k // 2, dtype=E2M1), _empty(rows, -(-k // group), dtype=dtype)
