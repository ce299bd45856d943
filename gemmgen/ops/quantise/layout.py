"""Where scales lie: contiguous along m or n with 16-byte columns, as TMA reads them, or in torch's 128x4 blocks.

Moves and pads scales, never judges or rounds them; which layout an architecture wants is decided in ``required``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gemmgen.ops.mk_alignment import stated_or_set
from gemmgen.ops.quantise.blocks import align, ceil_div
from gemmgen.ops.quantise.ue8m0 import pack_bytes, ue8m0_bytes

TMA_ALIGNMENT = 16
"""Bytes that TMA wants the start of every column of scales to be a multiple of."""
ATOM_ROWS, ATOM_COLUMNS = 128, 4
"""Scales in a block of torch's layout: 128 rows by 4 along k, 512 bytes."""
BYTE_TYPES = (torch.float8_e8m0fnu, torch.float8_e4m3fn, torch.uint8)


def get_tma_aligned_size(mn: int, element_size: int) -> int:
    """``mn`` rounded up so that a column of as many elements is a multiple of 16 bytes."""
    if element_size not in (1, 2, 4, 8, 16):
        raise ValueError(f"element_size: is {element_size}; must be the bytes of an element: 1, 2, 4, 8 or 16")
    return align(mn, TMA_ALIGNMENT // element_size)


def get_mn_major_tma_aligned_tensor(sf: torch.Tensor) -> torch.Tensor:
    """fp32 scales [.., mn, k] with strides (1, align(mn, 4)); the same tensor when it lies like that already."""
    check_rank(sf)
    if sf.dtype != torch.float32:
        raise TypeError(f"sf: dtype is {sf.dtype}; must be torch.float32; bytes go to the packed form")
    return mn_major(sf)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor, psum_layout: torch.Tensor | None = None, *, mk_alignment: int | None = None
) -> torch.Tensor:
    """Scales [.., mn, k] as int32 [.., mn, ceil(k/4)], four UE8M0 bytes a word, with strides (1, align(mn, 4)).

    sf: fp32 powers of two (others become NaN, none is rounded and nothing waits) or ``float8_e8m0fnu``.
    psum_layout: int32 [groups], the end of each group's rows; rows between groups become 0, whatever they held.
    mk_alignment: groups start at the next multiple of it; by default ``get_mk_alignment_for_contiguous_layout()``.
    """
    check_rank(sf)
    if sf.dtype == torch.int32:
        raise TypeError("sf: dtype is torch.int32, packed already; pass it to transform_sf_into_required_layout")
    return packed_mn_major(ue8m0_bytes(sf), psum_layout, mk_alignment)


def packed_mn_major(
    codes: torch.Tensor, psum_layout: torch.Tensor | None = None, mk_alignment: int | None = None
) -> torch.Tensor:
    """Scale bytes [.., mn, k] packed and contiguous along mn; bytes and rows that pad are 0."""
    words = pack_bytes(codes)
    if psum_layout is not None:
        words = words.masked_fill(~_rows_of_groups(psum_layout, codes, mk_alignment)[:, None], 0)
    return _padded(words)


def mn_major(sf: torch.Tensor) -> torch.Tensor:
    """A tensor of 4-byte elements contiguous along mn with aligned columns; the same one when it is so already.

    Strides over a single element are put right without a copy, for callers that read them.
    """
    if not lies_mn_major(sf):
        return _padded(sf)
    wanted = mn_major_strides(sf)
    return sf if sf.stride() == wanted else sf.as_strided(sf.shape, wanted)


def lies_mn_major(sf: torch.Tensor) -> bool:
    """Whether strides are (1, align(mn, 4)) and groups dense, from an aligned address."""
    return sf.storage_offset() * sf.element_size() % TMA_ALIGNMENT == 0 and has_mn_major_strides(sf)


def has_mn_major_strides(sf: torch.Tensor) -> bool:
    """Wherever it begins, which compilers do not know; a stride over a single element may be anything."""
    strides = zip(sf.shape, sf.stride(), mn_major_strides(sf), strict=True)
    return all(size <= 1 or have == want for size, have, want in strides)


def mn_major_strides(sf: torch.Tensor) -> tuple[int, ...]:
    """Those of [.., mn, columns] contiguous along mn, columns at multiples of 16 bytes and groups dense."""
    *_, mn, columns = sf.shape
    per_line = TMA_ALIGNMENT // sf.element_size()
    pitch = -(-mn // per_line) * per_line
    return (pitch * columns, 1, pitch)[-sf.dim() :]


def turned(sf: torch.Tensor) -> torch.Tensor:
    """A copy that lies so, what is between columns as memory had it: calls make such copies that nobody else sees."""
    return torch.empty_strided(sf.shape, mn_major_strides(sf), dtype=sf.dtype, device=sf.device).copy_(sf)


def to_blocked_128x4(sf: torch.Tensor) -> torch.Tensor:
    """One-byte scales [.., mn, k] in torch's blocked layout, flat [.., n]; rows and columns that pad are 0.

    Blocks of 128 rows by 4 columns follow each other along k first; in a block, row r and column c are byte
    ``16 * (r % 32) + 4 * (r // 32) + c``. What ``torch._scaled_mm`` takes and what TMA copies to tensor memory.
    """
    _check_bytes(sf)
    check_rank(sf)
    rows, columns = ceil_div(sf.shape[-2], ATOM_ROWS), ceil_div(sf.shape[-1], ATOM_COLUMNS)
    padding = (0, columns * ATOM_COLUMNS - sf.shape[-1], 0, rows * ATOM_ROWS - sf.shape[-2])
    padded = F.pad(sf.view(torch.uint8), padding).reshape(*sf.shape[:-2], rows, 4, 32, columns, ATOM_COLUMNS)
    blocks = padded.movedim(-2, -4).transpose(-3, -2)
    return blocks.reshape(*sf.shape[:-2], rows * ATOM_ROWS * columns * ATOM_COLUMNS).view(sf.dtype)


def from_blocked_128x4(blocked: torch.Tensor, mn: int, k_blocks: int) -> torch.Tensor:
    """Scales [.., mn, k_blocks] of flat [.., n] ones in torch's blocked layout; bytes that pad are not looked at."""
    _check_bytes(blocked)
    rows, columns = ceil_div(mn, ATOM_ROWS), ceil_div(k_blocks, ATOM_COLUMNS)
    wanted = rows * columns * ATOM_ROWS * ATOM_COLUMNS
    if blocked.shape[-1] != wanted:
        raise ValueError(
            f"blocked: has {blocked.shape[-1]} scales; {mn} x {k_blocks} of them in blocks of 128 x 4 make {wanted}; "
            "pass all blocks, whole, as to_blocked_128x4 lays them"
        )
    blocks = blocked.view(torch.uint8).reshape(*blocked.shape[:-1], rows, columns, 32, 4, ATOM_COLUMNS)
    padded = blocks.transpose(-3, -2).movedim(-4, -2)
    flat = padded.reshape(*blocked.shape[:-1], rows * ATOM_ROWS, columns * ATOM_COLUMNS)
    return flat[..., :mn, :k_blocks].contiguous().view(blocked.dtype)


def check_rank(sf: torch.Tensor) -> None:
    """Refuse what is neither a matrix of scales nor a stack of them."""
    if sf.dim() not in (2, 3):
        raise ValueError(f"sf: has {sf.dim()} dimensions; must have 2, or 3 with groups: (groups, mn, k)")


def _padded(sf: torch.Tensor) -> torch.Tensor:
    """A copy that lies so for callers, who may read its columns to their ends: what fills them up is 0."""
    strides = mn_major_strides(sf)
    *batch, mn, columns = sf.shape
    return sf.new_zeros(*batch, columns, strides[-1]).mT[..., :mn, :].copy_(sf)


def _rows_of_groups(psum_layout: torch.Tensor, codes: torch.Tensor, mk_alignment: int | None) -> torch.Tensor:
    """Mask [mn] of the rows that belong to a group, worked out on the device."""
    if psum_layout.dim() != 1 or psum_layout.dtype != torch.int32 or codes.dim() != 2:
        raise ValueError(
            f"psum_layout: is {psum_layout.dtype} {tuple(psum_layout.shape)} for scales of {codes.dim()} dimensions; "
            "must be torch.int32 [groups] for the scales [mn, k] of a contiguous grouped a"
        )
    if not psum_layout.numel():
        return torch.zeros(codes.shape[0], dtype=torch.bool, device=codes.device)
    step = stated_or_set(mk_alignment)
    aligned = (psum_layout + (step - 1)) // step * step
    starts = F.pad(aligned[:-1], (1, 0))
    rows = torch.arange(codes.shape[0], dtype=torch.int32, device=codes.device)
    group = torch.searchsorted(psum_layout, rows, right=True)
    inside = group < psum_layout.numel()
    return inside & (rows >= starts[group.clamp(max=psum_layout.numel() - 1)])


def _check_bytes(sf: torch.Tensor) -> None:
    if sf.dtype not in BYTE_TYPES:
        raise TypeError(
            f"sf: dtype is {sf.dtype}; the 128x4 layout has one byte a scale: one of "
            f"{', '.join(map(str, BYTE_TYPES))}"
        )
