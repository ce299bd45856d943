"""Matrix-multiply ops that torch users call: importing this package touches no GPU and compiles nothing.

Written by ``gemmgen generate``; do not edit.
"""

from gemmgen_ops.bf16_gemm_nn import bf16_gemm_nn
from gemmgen_ops.bf16_gemm_nt import bf16_gemm_nt
from gemmgen_ops.bf16_gemm_tn import bf16_gemm_tn
from gemmgen_ops.bf16_gemm_tt import bf16_gemm_tt
from gemmgen_ops.fp8_gemm_nt import fp8_gemm_nt

__all__ = [
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "fp8_gemm_nt",
]
