"""Scales of groups of k as tensor cores that scale read them: words of four, of which every group begins anew.

Knows where groups lie from numbers on the device, and waits for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F

from gemmgen.ops.mk_alignment import stated_or_set
from gemmgen.ops.quantise.blocks import ceil_div
from gemmgen.ops.quantise.layout import get_tma_aligned_size
from gemmgen.ops.quantise.ue8m0 import ue8m0_bytes

BYTES = 4
"""Scales in a word, the lowest first."""
_WHOLE = (Integral, torch.SymInt)


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor,
    grouped_layout: torch.Tensor,
    ks_cpu: Sequence[int] | None,
    gran_k: int = 128,
    k_alignment: int | None = None,
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """Scales [scales of all groups, mn] as int32 [words of all groups, mn], rows 16 bytes apart or a multiple of it.

    sf: fp32 powers of two (others become NaN) or ``float8_e8m0fnu``, for every group one for ``gran_k`` of its k,
        rounded up. A group's last word is filled up with 0.
    grouped_layout: int32 [groups], k of each group, or with use_psum_layout where each ends; then groups start at the
        next multiple of the alignment.
    ks_cpu: k of each group on the host, checked against the scales; with None or [] there are as many words as there
        could be, the last ones 0. With use_psum_layout they may be rounded up to the alignment; scales never are.
    k_alignment: by default ``get_mk_alignment_for_contiguous_layout()``.
    """
    _check(sf, grouped_layout, gran_k, k_alignment)
    groups, ks, alignment = grouped_layout.shape[0], host_sizes(ks_cpu), stated_or_set(k_alignment)
    if ks:
        _check_sizes(sf, ks, groups, gran_k, alignment if use_psum_layout else 1)
        words = sum(ceil_div(k, BYTES * gran_k) for k in ks)
    else:
        words = (sf.shape[0] + (BYTES - 1) * groups) // BYTES
    room = torch.zeros(words, get_tma_aligned_size(sf.shape[1], 4), dtype=torch.int32, device=sf.device)
    packed = room[:, : sf.shape[1]]
    if words and sf.shape[0] and groups:
        packed.copy_(_packed(ue8m0_bytes(sf), _counts(grouped_layout, alignment, use_psum_layout), gran_k, words))
    return packed


def host_sizes(ks_cpu: Any) -> list[int]:
    """Sizes that the host knows, of a list, an array or a tensor on the CPU; empty where it knows none."""
    if ks_cpu is None:
        return []
    if isinstance(ks_cpu, torch.Tensor) and ks_cpu.device.type != "cpu":
        raise TypeError(
            f"ks_cpu: is a Tensor on {ks_cpu.device}; sizes are known on the host, so that nothing waits; pass None or "
            "a list"
        )
    if type(ks_cpu) is list and set(map(type, ks_cpu)) <= {int}:  # as nearly always, and abstract types are slow
        return ks_cpu
    sizes = ks_cpu.tolist() if hasattr(ks_cpu, "tolist") else ks_cpu
    if not isinstance(sizes, Sequence) or not all(isinstance(size, _WHOLE) for size in sizes):
        raise TypeError(f"ks_cpu: is {ks_cpu!r}; must be a whole number for each group, such as [128, 256], or None")
    return list(sizes)


def rows_of_scales(ks: Sequence[int], unit: int, step: int) -> tuple[int, int]:
    """Rows that scales for ``unit`` of k have, at least and at most: multiples of ``step`` may have been rounded up."""
    most = sum(ceil_div(k, unit) for k in ks)
    return sum(ceil_div(k if k % step else max(0, k - step + 1), unit) for k in ks), most


def _check_sizes(sf: torch.Tensor, ks: list[int], groups: int, gran_k: int, step: int) -> None:
    """Refuse sizes that do not make as many scales as there are; multiples of ``step`` may have been rounded up."""
    if len(ks) != groups:
        raise ValueError(
            f"ks_cpu: has {len(ks)} sizes, but grouped_layout has {groups} groups; pass one for each group, or None"
        )
    for group, k in enumerate(ks):
        if k < 0:
            raise ValueError(f"ks_cpu: group {group} has {k} of k; must be 0 or more")
    least, most = rows_of_scales(ks, gran_k, step)
    if not least <= sf.shape[0] <= most:
        rule = f"{most}" if least == most else f"{least} to {most}"
        raise ValueError(
            f"sf: has {sf.shape[0]} rows; must have {rule}, one for {gran_k} of k of every group, rounded up for each; "
            "pass the scales of all groups and their ks_cpu, or None"
        )


def _check(sf: torch.Tensor, layout: torch.Tensor, gran_k: int, k_alignment: int | None) -> None:
    if sf.dim() != 2:
        raise ValueError(f"sf: has {sf.dim()} dimensions; must be [scales of all groups, mn]")
    if sf.dtype not in (torch.float32, torch.float8_e8m0fnu):
        raise TypeError(f"sf: dtype is {sf.dtype}; must be torch.float32 or torch.float8_e8m0fnu")
    if layout.dim() != 1 or layout.dtype != torch.int32:
        raise TypeError(
            f"grouped_layout: is {layout.dtype} {tuple(layout.shape)}; must be torch.int32 [groups], so pass "
            "grouped_layout.to(torch.int32)"
        )
    for name, value in (("gran_k", gran_k), ("k_alignment", k_alignment)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: is {value}; must be positive")


def _counts(layout: torch.Tensor, alignment: int, ends: bool) -> torch.Tensor:
    """How much of k each group has."""
    if not ends:
        return layout.clamp(min=0)
    aligned = (layout + (alignment - 1)) // alignment * alignment
    return (layout - F.pad(aligned[:-1], (1, 0))).clamp(min=0)


def _packed(codes: torch.Tensor, counts: torch.Tensor, gran_k: int, words: int) -> torch.Tensor:
    """Words [words, mn] of scale bytes [scales, mn]."""
    blocks = (counts + (gran_k - 1)) // gran_k
    of_each = (blocks + (BYTES - 1)) // BYTES
    ends, block_ends = of_each.cumsum(0), blocks.cumsum(0)
    word = torch.arange(words, device=codes.device)
    group = torch.searchsorted(ends, word, right=True).clamp(max=counts.shape[0] - 1)
    first = (block_ends - blocks)[group] + BYTES * (word - (ends - of_each)[group])
    index = first[:, None] + torch.arange(BYTES, device=codes.device)
    inside = index < block_ends[group][:, None]
    picked = codes[index.clamp(min=0, max=codes.shape[0] - 1)].to(torch.int32).masked_fill(~inside[..., None], 0)
    return picked[:, 0] | picked[:, 1] << 8 | picked[:, 2] << 16 | picked[:, 3] << 24
