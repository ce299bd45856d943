"""P29: one graph serves every number of rows, for operators of groups and fused ones; traced, and nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graphs import ROWS, graphs_of
from problems import fp8_problem

import gemmgen
from gemmgen import ops

BF16 = torch.bfloat16
Calls = Iterator[tuple[torch.Tensor, ...]]
WEIGHTS = torch.zeros(2, 16, 64, dtype=BF16)
BIAS = torch.zeros(256)


def numbers(*given: int) -> torch.Tensor:
    return torch.tensor(given, dtype=torch.int32)


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def fp8() -> Calls:
    for rows in ROWS:
        yield tuple(fp8_problem(rows, 256, 256).tensors.values())


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Calls]]] = {
    "contiguous": (
        lambda a, ends: ops.m_grouped_bf16_gemm_nt_contiguous(a, WEIGHTS, None, ends, offsets=True) + 0,
        lambda: ((zeros(rows, 64), numbers(3, rows)) for rows in ROWS),
    ),
    "contiguous by ids": (
        lambda a, ids: ops.m_grouped_bf16_gemm_nt_contiguous(a, WEIGHTS, None, ids) + 0,
        lambda: ((zeros(128 * rows, 64), zeros(128 * rows, dtype=torch.int32)) for rows in ROWS),
    ),
    "masked": (
        lambda a, counts: ops.m_grouped_bf16_gemm_nt_masked(a, WEIGHTS, None, counts, 4) + 0,
        lambda: ((zeros(2, rows, 64), numbers(3, 2)) for rows in ROWS),
    ),
    "groups of k": (
        lambda a, b, d, ks: ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, ks) + 0,
        lambda: ((zeros(k, 64), zeros(k, 32), zeros(2, 64, 32, dtype=torch.float32), numbers(3, k - 3)) for k in ROWS),
    ),
    "prenorm": (
        lambda a, d, squares: ops.tf32_hc_prenorm_gemm(a, zeros(8, 64, dtype=torch.float32), d, squares),
        lambda: (
            (zeros(rows, 64), zeros(rows, 8, dtype=torch.float32), zeros(rows, dtype=torch.float32)) for rows in ROWS
        ),
    ),
    "quantised": (lambda a, sfa, b, sfb: ops.fp8_gemm_nt_fp8out((a, sfa), (b, sfb))[0].float() + 0, fp8),
    "quantised by 32": (
        lambda a, sfa, b, sfb: ops.fp8_gemm_nt_mxfp8out((a, sfa), (b, sfb))[0].float() + 0,
        fp8,
    ),
    "bias and activation": (
        lambda a, sfa, b, sfb: ops.fp8_gemm_nt((a, sfa), (b, sfb), bias=BIAS, activation="silu") + 0,
        fp8,
    ),
    "gate": (lambda a, sfa, b, sfb: ops.fp8_gemm_nt((a, sfa), (b, sfb), gate="halves") + 0, fp8),
    "heads": (
        lambda a, sfa, b, sfb: ops.fp8_gemm_nt_skip_head_mid((a, sfa), (b, sfb), zeros(len(a), 1280), (8, 64, 8)),
        fp8,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_rows_has_the_same_graph(name: str) -> None:
    function, calls = CASES[name]
    with gemmgen.simulate("sm90", sms=2):
        targets, count = graphs_of(function, calls())
    assert count == 1 and any("gemmgen" in str(target) for target in targets)
