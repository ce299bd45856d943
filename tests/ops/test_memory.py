"""Rules on addresses and strides, each from both sides."""

from __future__ import annotations

import random

import pytest
import torch

from gemmgen.ir import DType, Operand
from gemmgen.ops.memory import check_overlap, disjoint, pointer_fault, span, tma_fault

A = Operand(name="a", dtype=DType.BF16, box=("m", "k"))
SFA = Operand(name="sfa", dtype=DType.F32, box=("m", "k/128"), major="m")


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "tensor",
    [
        bf16(8, 64),
        bf16(8, 72)[:, :64],  # padded pitch
        bf16(16, 64)[::2],  # every other row
        bf16(1, 65),  # one row has no pitch
        bf16(8, 64)[:, 8:],  # 16 bytes in
        bf16(0, 65),
        bf16(8, 0),
        torch.zeros(64, dtype=torch.bfloat16).as_strided((1, 64), (3, 1)),  # any stride where the size is 1
    ],
)
def test_tensors_that_tma_reaches(tensor: torch.Tensor) -> None:
    assert tma_fault(A, tensor) is None


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (bf16(8, 65), "pitch"),
        (bf16(8, 72)[:, 1:65], "address"),
        (bf16(64, 8).T, "strides"),
        (bf16(8, 1), "pitch"),
        (bf16(1, 64).expand(8, 64), "overlap"),
    ],
)
def test_tensors_that_tma_does_not_reach(tensor: torch.Tensor, word: str) -> None:
    assert word in (tma_fault(A, tensor) or "")


def test_scales_contiguous_along_m() -> None:
    aligned = torch.zeros(3, 8)[:, :7].T
    assert aligned.stride() == (1, 8) and tma_fault(SFA, aligned) is None
    assert "pitch" in (tma_fault(SFA, torch.zeros(3, 7).T) or "")
    assert tma_fault(SFA, torch.zeros(1, 7).T) is None  # a single column has no pitch
    assert "contiguous" in (tma_fault(SFA, torch.zeros(7, 3)) or "")


def test_pointers_need_only_element_alignment() -> None:
    assert pointer_fault(A, bf16(8, 65)[:, 1:]) is None
    assert "strides" in (pointer_fault(A, bf16(64, 8).T) or "")
    odd = torch.zeros(130, dtype=torch.uint8)[1:129].view(torch.uint8)
    assert pointer_fault(A.replace(dtype=DType.E4M3), odd.view(torch.float8_e4m3fn).view(8, 16)) is None


def test_span_of_views() -> None:
    assert span(bf16(8, 64)) == 8 * 64 * 2
    assert span(bf16(8, 64)[::2, :10]) == (6 * 64 + 10) * 2
    assert span(bf16(0, 64)) == 0


def test_columns_of_one_buffer_are_disjoint() -> None:
    buffer = bf16(8, 128)
    assert disjoint(buffer[:, :64], buffer[:, 64:])
    assert disjoint(buffer[:, 64:], buffer[:, :64])
    assert not disjoint(buffer[:, :65], buffer[:, 64:])
    assert not disjoint(buffer, buffer[3:, 7:])
    assert disjoint(buffer[:4], buffer[4:])
    assert disjoint(buffer[:0], buffer)
    assert not disjoint(buffer[:, 32:96], buffer.view(-1)[64:512].view(7, 64))  # different pitches: refused


def test_interleaving_is_judged_like_an_exact_comparison() -> None:
    """Against the set of bytes each view touches."""
    buffer = torch.zeros(6 * 20, dtype=torch.uint8)
    views = [buffer.as_strided((3, width), (20, 1), start) for width in (4, 9) for start in range(0, 40, 3)]
    for x in views:
        for y in views:
            touched = _bytes(x) & _bytes(y)
            assert disjoint(x, y) == (not touched), (x.storage_offset(), y.storage_offset(), x.shape, y.shape)


def _bytes(view: torch.Tensor) -> set[int]:
    numbers = torch.arange(view.untyped_storage().nbytes())
    return set(numbers.as_strided(view.shape, view.stride(), view.storage_offset()).flatten().tolist())


def test_blocks_of_groups_are_judged_like_an_exact_comparison() -> None:
    """Columns, rows and both, of every group or of some, and groups that lie between the rows of others."""
    buffer = torch.zeros(2, 6, 8, dtype=torch.uint8)
    columns = [buffer[:, :, start : start + width] for start in range(0, 8, 2) for width in (2, 5)]
    blocks = [buffer[:, rows, :5] for rows in (slice(0, 2), slice(2, 6), slice(1, 3))]
    between = buffer.view(6, 2, 8).transpose(0, 1)
    views = [
        *columns,
        *blocks,
        *(each[:1] for each in blocks),
        between[:1, :, :4],
        between[1:],
        buffer[0],
        buffer[1, 3],
    ]
    for x in views:
        for y in views:
            assert disjoint(x, y) == (not _bytes(x) & _bytes(y)), (x.shape, x.stride(), y.shape, y.stride())


def test_nothing_that_shares_a_byte_is_disjoint() -> None:
    """Of any strides; what is apart may be refused where no period tells."""
    draw, buffer, apart = random.Random(1), torch.zeros(400, dtype=torch.uint8), 0
    for _ in range(3000):
        x, y = (
            buffer.as_strided([draw.randint(1, 4) for _ in range(3)], [draw.randint(0, 30) for _ in range(3)], start)
            for start in (draw.randint(0, 100), draw.randint(0, 100))
        )
        if disjoint(x, y):
            apart += 1
            assert not _bytes(x) & _bytes(y), (x.shape, x.stride(), y.shape, y.stride())
    assert apart > 300


def test_only_the_exact_output_may_be_the_residual() -> None:
    d = bf16(8, 16)
    check_overlap("d", {"c": d, "d": d}, in_place=["c"])
    check_overlap("d", {"c": d.view(8, 16), "d": d}, in_place=["c"])
    with pytest.raises(ValueError, match="overlaps c"):
        check_overlap("d", {"c": d, "d": d}, in_place=[])
    with pytest.raises(ValueError, match="overlaps c"):
        check_overlap("d", {"c": d.view(16, 8).T, "d": d}, in_place=["c"])
