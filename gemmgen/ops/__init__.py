"""Operators for torch: argument checks, tile choice, registration and launches. Importing it needs torch but no GPU."""

from gemmgen.ops.api import bf16_gemm_nn, bf16_gemm_nt, bf16_gemm_tn, bf16_gemm_tt, fp8_gemm_nt
from gemmgen.ops.selection import OPERATORS, spec_for
from gemmgen.ops.spec_op import SpecOp, op

__all__ = [
    "OPERATORS",
    "SpecOp",
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "fp8_gemm_nt",
    "op",
    "spec_for",
]
