"""Scales of groups of k as tensor cores that scale read them: words of four, of which every group begins anew.

Knows where groups lie from numbers on the device, and waits for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from gemmgen.ops.quantise.blocks import ceil_div
from gemmgen.ops.quantise.layout import get_tma_aligned_size
from gemmgen.ops.quantise.ue8m0 import ue8m0_bytes

BYTES = 4
"""Scales in a word, the lowest first."""


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor,
    grouped_layout: torch.Tensor,
    ks_cpu: Sequence[int] | None,
    gran_k: int = 128,
    k_alignment: int = 128,
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """Scales [scales of all groups, mn] as int32 [words of all groups, mn], rows 16 bytes apart or a multiple of it.

    sf: fp32 powers of two (others become NaN) or ``float8_e8m0fnu``, for every group one for ``gran_k`` of its k,
        rounded up. A group's last word is filled up with 0.
    grouped_layout: int32 [groups], k of each group, or with use_psum_layout where each ends; then groups start at the
        next multiple of ``k_alignment``.
    ks_cpu: k of each group on the host; with None or [] there are as many words as there could be, the last ones 0.
    """
    _check(sf, grouped_layout, gran_k, k_alignment)
    groups = grouped_layout.shape[0]
    if ks_cpu is None or len(ks_cpu) == 0:
        words = (sf.shape[0] + (BYTES - 1) * groups) // BYTES
    else:
        words = sum(ceil_div(k, BYTES * gran_k) for k in ks_cpu)
    room = torch.zeros(words, get_tma_aligned_size(sf.shape[1], 4), dtype=torch.int32, device=sf.device)
    packed = room[:, : sf.shape[1]]
    if words and sf.shape[0] and groups:
        packed.copy_(_packed(ue8m0_bytes(sf), _counts(grouped_layout, k_alignment, use_psum_layout), gran_k, words))
    return packed


def _check(sf: torch.Tensor, layout: torch.Tensor, gran_k: int, k_alignment: int) -> None:
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
        if value < 1:
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
