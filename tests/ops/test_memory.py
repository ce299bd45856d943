"""Rules on addresses and strides, each from both sides."""

from __future__ import annotations

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
    return {
        view.storage_offset() + row * view.stride(0) + column
        for row in range(view.shape[0])
        for column in range(view.shape[1])
    }


def test_only_the_exact_output_may_be_the_residual() -> None:
    d = bf16(8, 16)
    check_overlap("d", {"c": d, "d": d}, in_place=["c"])
    check_overlap("d", {"c": d.view(8, 16), "d": d}, in_place=["c"])
    with pytest.raises(ValueError, match="overlaps c"):
        check_overlap("d", {"c": d, "d": d}, in_place=[])
    with pytest.raises(ValueError, match="overlaps c"):
        check_overlap("d", {"c": d.view(16, 8).T, "d": d}, in_place=["c"])
