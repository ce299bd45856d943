"""Matrix-multiply ops that torch users call: importing this package touches no GPU and compiles nothing.

Written by ``gemmgen generate``; do not edit.
"""

from gemmgen.ops import (
    align,
    bf16_m_grouped_gemm_nt_masked,
    cast_back_from_fp4,
    cast_back_from_fp8,
    ceil_div,
    ceil_to_ue8m0,
    fp8_m_grouped_gemm_nt_masked,
    get_deterministic_algorithms,
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_num_sms,
    get_pdl,
    get_theoretical_mk_alignment_for_contiguous_layout,
    get_tma_aligned_size,
    pack_ue8m0_to_int,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
    set_mk_alignment_for_contiguous_layout,
    set_num_sms,
    set_pdl,
    transform_sf_into_required_layout,
    transpose_packed_fp4,
    use_deterministic_algorithms,
    warmup,
)
from gemmgen_ops.bf16_gemm_nn import bf16_gemm_nn
from gemmgen_ops.bf16_gemm_nt import bf16_gemm_nt
from gemmgen_ops.bf16_gemm_nt_fp8out import bf16_gemm_nt_fp8out
from gemmgen_ops.bf16_gemm_nt_mxfp8out import bf16_gemm_nt_mxfp8out
from gemmgen_ops.bf16_gemm_tn import bf16_gemm_tn
from gemmgen_ops.bf16_gemm_tt import bf16_gemm_tt
from gemmgen_ops.fp8_fp4_gemm_nn import fp8_fp4_gemm_nn
from gemmgen_ops.fp8_fp4_gemm_nt import fp8_fp4_gemm_nt
from gemmgen_ops.fp8_fp4_gemm_tn import fp8_fp4_gemm_tn
from gemmgen_ops.fp8_fp4_gemm_tt import fp8_fp4_gemm_tt
from gemmgen_ops.fp8_gemm_nn import fp8_gemm_nn
from gemmgen_ops.fp8_gemm_nt import fp8_gemm_nt
from gemmgen_ops.fp8_gemm_nt_fp8out import fp8_gemm_nt_fp8out
from gemmgen_ops.fp8_gemm_nt_mxfp8out import fp8_gemm_nt_mxfp8out
from gemmgen_ops.fp8_gemm_nt_skip_head_mid import fp8_gemm_nt_skip_head_mid
from gemmgen_ops.fp8_gemm_tn import fp8_gemm_tn
from gemmgen_ops.fp8_gemm_tt import fp8_gemm_tt
from gemmgen_ops.k_grouped_bf16_gemm_tn_contiguous import k_grouped_bf16_gemm_tn_contiguous
from gemmgen_ops.k_grouped_fp8_gemm_nt_contiguous import k_grouped_fp8_gemm_nt_contiguous
from gemmgen_ops.k_grouped_fp8_gemm_tn_contiguous import k_grouped_fp8_gemm_tn_contiguous
from gemmgen_ops.m_grouped_bf16_gemm_nn_contiguous import m_grouped_bf16_gemm_nn_contiguous
from gemmgen_ops.m_grouped_bf16_gemm_nt_contiguous import m_grouped_bf16_gemm_nt_contiguous
from gemmgen_ops.m_grouped_bf16_gemm_nt_masked import m_grouped_bf16_gemm_nt_masked
from gemmgen_ops.m_grouped_fp8_fp4_gemm_nn_contiguous import m_grouped_fp8_fp4_gemm_nn_contiguous
from gemmgen_ops.m_grouped_fp8_fp4_gemm_nt_contiguous import m_grouped_fp8_fp4_gemm_nt_contiguous
from gemmgen_ops.m_grouped_fp8_fp4_gemm_nt_masked import m_grouped_fp8_fp4_gemm_nt_masked
from gemmgen_ops.m_grouped_fp8_gemm_nn_contiguous import m_grouped_fp8_gemm_nn_contiguous
from gemmgen_ops.m_grouped_fp8_gemm_nt_contiguous import m_grouped_fp8_gemm_nt_contiguous
from gemmgen_ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out import m_grouped_fp8_gemm_nt_contiguous_mxfp8out
from gemmgen_ops.m_grouped_fp8_gemm_nt_masked import m_grouped_fp8_gemm_nt_masked
from gemmgen_ops.mxfp4_gemm_nt import mxfp4_gemm_nt
from gemmgen_ops.nvfp4_gemm_nt import nvfp4_gemm_nt
from gemmgen_ops.tf32_hc_prenorm_gemm import tf32_hc_prenorm_gemm

__all__ = [
    "align",
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_nt_fp8out",
    "bf16_gemm_nt_mxfp8out",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "bf16_m_grouped_gemm_nt_masked",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "fp8_fp4_gemm_nn",
    "fp8_fp4_gemm_nt",
    "fp8_fp4_gemm_tn",
    "fp8_fp4_gemm_tt",
    "fp8_gemm_nn",
    "fp8_gemm_nt",
    "fp8_gemm_nt_fp8out",
    "fp8_gemm_nt_mxfp8out",
    "fp8_gemm_nt_skip_head_mid",
    "fp8_gemm_tn",
    "fp8_gemm_tt",
    "fp8_m_grouped_gemm_nt_masked",
    "get_deterministic_algorithms",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_pdl",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous_mxfp8out",
    "m_grouped_fp8_gemm_nt_masked",
    "mxfp4_gemm_nt",
    "nvfp4_gemm_nt",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "tf32_hc_prenorm_gemm",
    "transform_sf_into_required_layout",
    "transpose_packed_fp4",
    "use_deterministic_algorithms",
    "warmup",
]
