"""Where scales lie: columns that TMA can read, words of four bytes, and torch's 128x4 blocks by the layout tables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scale_tables import same, table

from gemmgen.ops import quantise
from gemmgen.ops.quantise.layout import lies_mn_major

SHAPES = [(1, 1), (1, 9), (3, 5), (4, 4), (127, 3), (4097, 2), (2, 5, 3), (3, 4, 1), (1, 6, 7)]
BLOCKS = table("sm100_scale_blocks")


def powers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random powers of two from 2**-126 to 2**127."""
    codes = torch.randint(1, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return quantise.decode_ue8m0(codes)


def padding_of(tensor: torch.Tensor) -> torch.Tensor:
    """Words between the last row and the next column."""
    pitch = -(-tensor.shape[-2] // 4) * 4
    words = tensor.as_strided((tensor.untyped_storage().nbytes() // 4 // pitch, pitch), (pitch, 1), 0)
    return words[:, tensor.shape[-2] :]


@pytest.mark.parametrize("mn", [0, 1, 4, 5, 4097])
def test_aligned_sizes(mn: int) -> None:
    assert quantise.get_tma_aligned_size(mn, 4) == -(-mn // 4) * 4
    assert quantise.get_tma_aligned_size(mn, 1) == -(-mn // 16) * 16
    with pytest.raises(ValueError, match=r"^element_size: is 3; must be"):
        quantise.get_tma_aligned_size(mn, 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_fp32_scales_get_aligned_columns(shape: tuple[int, ...]) -> None:
    sf = torch.randn(shape)
    laid = quantise.get_mn_major_tma_aligned_tensor(sf)
    pitch = -(-shape[-2] // 4) * 4
    assert same(laid, sf) and laid.dtype == torch.float32
    assert laid.stride() == ((pitch * shape[-1],) if len(shape) == 3 else ()) + (1, pitch)
    if laid.data_ptr() != sf.data_ptr():
        assert padding_of(laid).eq(0).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_scales_get_aligned_columns(shape: tuple[int, ...]) -> None:
    sf = powers(*shape)
    laid = quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    pitch, words = -(-shape[-2] // 4) * 4, -(-shape[-1] // 4)
    assert laid.dtype == torch.int32 and laid.shape == (*shape[:-1], words)
    assert laid.stride() == ((pitch * words,) if len(shape) == 3 else ()) + (1, pitch)
    assert same(quantise.unpack_ue8m0_from_int(laid, shape[-1]), sf)
    assert same(laid, quantise.pack_ue8m0_to_int(sf)) and padding_of(laid).eq(0).all()
    bytes_ = (sf.view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)
    assert same(quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(bytes_), laid)


def test_each_word_by_arithmetic() -> None:
    codes = torch.randint(0, 256, (5, 7), generator=torch.Generator().manual_seed(1))
    laid = quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(codes.to(torch.uint8).view(torch.float8_e8m0fnu))
    storage = torch.as_strided(laid, (16,), (1,), 0).tolist()
    for row in range(8):
        for word in range(2):
            bytes_ = codes[row, 4 * word : 4 * word + 4].tolist() if row < 5 else []
            assert storage[8 * word + row] & 0xFFFFFFFF == sum(byte << 8 * i for i, byte in enumerate(bytes_))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_lies_right_already_is_returned_itself(shape: tuple[int, ...]) -> None:
    laid = quantise.get_mn_major_tma_aligned_tensor(torch.randn(shape))
    assert quantise.get_mn_major_tma_aligned_tensor(laid) is laid


def test_a_stride_over_one_element_may_be_anything() -> None:
    one_column = torch.randn(5, 1)
    assert lies_mn_major(one_column.as_strided((5, 1), (1, 1))) and lies_mn_major(
        one_column.as_strided((5, 1), (1, 77))
    )
    one_row = torch.randn(12)
    assert lies_mn_major(one_row.as_strided((1, 3), (9, 4))) and not lies_mn_major(one_row.as_strided((1, 3), (9, 1)))
    assert lies_mn_major(one_row.as_strided((1, 5, 1), (3, 1, 8)))
    assert not lies_mn_major(
        torch.zeros(9)[1:].as_strided((4, 2), (1, 4), 1)
    ), "a start that is no multiple of 16 bytes"


@pytest.mark.parametrize("view", ["T", "step", "columns", "rows"])
def test_views_of_scales_are_read_by_what_they_show(view: str) -> None:
    buffer = powers(40, 36)
    sf = {"T": buffer.T, "step": buffer[::3, ::2], "columns": buffer[:, 5:14], "rows": buffer[7:21]}[view]
    for move in (quantise.get_mn_major_tma_aligned_tensor, quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor):
        assert same(move(sf), move(sf.contiguous()))


@given(shape=st.sampled_from([(0, 3), (3, 0), (0, 0), (0, 4, 4), (2, 0, 4), (2, 4, 0)]))
def test_empty_scales(shape: tuple[int, ...]) -> None:
    sf = torch.empty(shape)
    assert quantise.get_mn_major_tma_aligned_tensor(sf).shape == shape
    packed = quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    assert packed.shape == (*shape[:-1], -(-shape[-1] // 4)) and packed.dtype == torch.int32


def test_scales_of_other_types_or_ranks_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"^sf: dtype is torch.int32; must be torch.float32; bytes go to the packed form$"
    ):
        quantise.get_mn_major_tma_aligned_tensor(torch.ones(2, 2, dtype=torch.int32))
    with pytest.raises(TypeError, match=r"^sf: dtype is torch.int32, packed already"):
        quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(torch.ones(2, 2, dtype=torch.int32))
    for move in (quantise.get_mn_major_tma_aligned_tensor, quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor):
        with pytest.raises(ValueError, match=r"^sf: has 1 dimensions; must have 2, or 3 with groups"):
            move(torch.ones(3))


# ------------------------------------------------------------------------------------------- rows between groups


@given(
    sizes=st.lists(st.integers(0, 20), max_size=6), alignment=st.sampled_from([1, 4, 8, 16]), seed=st.integers(0, 99)
)
def test_rows_between_groups_become_zero(sizes: list[int], alignment: int, seed: int) -> None:
    ends, rows = [], []
    for size in sizes:
        start = -(-(ends[-1] if ends else 0) // alignment) * alignment
        rows += range(start, start + size)
        ends.append(start + size)
    mn = (ends[-1] if ends else 0) + seed % 7
    sf = powers(mn, 5, seed=seed)
    inside = torch.zeros(mn, dtype=torch.bool)
    inside[rows] = True
    sf[~inside] = float("nan")
    layout = torch.tensor(ends, dtype=torch.int32)
    laid = quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, layout, mk_alignment=alignment)
    assert laid[~inside].eq(0).all()
    assert same(laid[inside].contiguous(), quantise.pack_ue8m0_to_int(sf)[inside])


def test_a_group_layout_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^psum_layout: is torch.int64 \(1,\) for scales of 2 dimensions; must be"):
        quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(powers(4, 4), torch.tensor([4]))


# -------------------------------------------------------------------------------------------- torch's 128x4 blocks


def test_one_block_is_the_table_s() -> None:
    numbers = torch.arange(512, dtype=torch.int32)
    offsets = torch.tensor(BLOCKS["atom"]["map"])
    for part in (numbers % 256, numbers // 256):  # a byte cannot number 512 scales
        flat = part.to(torch.uint8)
        assert torch.equal(quantise.from_blocked_128x4(flat, 128, 4), flat[offsets])
        assert torch.equal(quantise.to_blocked_128x4(flat[offsets]), flat)


@pytest.mark.parametrize("name", BLOCKS["tiled"])
def test_whole_tensors_are_the_table_s(name: str) -> None:
    case = BLOCKS["tiled"][name]
    mn, columns, batch = case["mn"], case["k"] // case["block"], case["batch"]
    codes = torch.randint(0, 256, (batch, mn, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    blocked = quantise.to_blocked_128x4(codes)
    assert blocked.numel() == case["total_bytes"]
    for row, column, group, offset in case["samples"]:
        if row < mn and column < columns:
            assert blocked.flatten()[offset] == codes[group, row, column]
    assert torch.equal(quantise.from_blocked_128x4(blocked, mn, columns), codes)


@given(
    batch=st.sampled_from([(), (1,), (3,)]), mn=st.integers(0, 300), columns=st.integers(0, 9), seed=st.integers(0, 99)
)
def test_blocks_hold_every_scale_once_and_zeros(batch: tuple[int, ...], mn: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(1, 256, (*batch, mn, columns), dtype=torch.uint8, generator=generator)
    for dtype in (torch.uint8, torch.float8_e8m0fnu, torch.float8_e4m3fn):
        blocked = quantise.to_blocked_128x4(codes.view(dtype))
        assert blocked.dtype == dtype and blocked.shape[:-1] == batch
        assert blocked.shape[-1] == -(-mn // 128) * 128 * -(-columns // 4) * 4
        assert blocked.view(torch.uint8).ne(0).sum() == codes.numel()
        assert same(quantise.from_blocked_128x4(blocked, mn, columns), codes.view(dtype))


def test_blocks_of_other_sizes_or_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^blocked: has 512 scales; 130 x 4 of them in blocks of 128 x 4 make 1024;"):
        quantise.from_blocked_128x4(torch.zeros(512, dtype=torch.uint8), 130, 4)
    with pytest.raises(TypeError, match=r"^sf: dtype is torch.float32; the 128x4 layout has one byte a scale"):
        quantise.to_blocked_128x4(torch.zeros(128, 4))
