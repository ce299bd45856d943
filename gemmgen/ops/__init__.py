"""Operators for torch: argument checks, tile choice, registration and launches. Importing it needs torch but no GPU."""

from gemmgen.ops.api import (
    bf16_gemm_nn,
    bf16_gemm_nt,
    bf16_gemm_tn,
    bf16_gemm_tt,
    fp8_gemm_nn,
    fp8_gemm_nt,
    fp8_gemm_tn,
    fp8_gemm_tt,
    tf32_hc_prenorm_gemm,
)
from gemmgen.ops.api_block_scaled import (
    fp8_fp4_gemm_nn,
    fp8_fp4_gemm_nt,
    fp8_fp4_gemm_tn,
    fp8_fp4_gemm_tt,
    mxfp4_gemm_nt,
    nvfp4_gemm_nt,
)
from gemmgen.ops.api_fused import (
    bf16_gemm_nt_fp8out,
    bf16_gemm_nt_mxfp8out,
    fp8_gemm_nt_fp8out,
    fp8_gemm_nt_mxfp8out,
)
from gemmgen.ops.api_heads import fp8_gemm_nt_skip_head_mid
from gemmgen.ops.api_k_grouped import (
    k_grouped_bf16_gemm_tn_contiguous,
    k_grouped_fp8_gemm_nt_contiguous,
)
from gemmgen.ops.fused_op import FUSED_OPERATORS, FusedOp, fuse
from gemmgen.ops.mk_alignment import (
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_mk_alignment_for_contiguous_layout,
)
from gemmgen.ops.quantise import (
    cast_back_from_fp4,
    cast_back_from_fp8,
    cast_back_from_nvfp4,
    cast_to_mxfp4,
    cast_to_mxfp8,
    cast_to_nvfp4,
    check_ue8m0,
    from_blocked_128x4,
    get_tma_aligned_size,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
    requantise_to_ue8m0,
    to_blocked_128x4,
    transpose_packed_fp4,
)
from gemmgen.ops.scale_layouts import (
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    transform_sf_into_required_layout,
)
from gemmgen.ops.scales import Blocked128x4
from gemmgen.ops.selection import OPERATORS, spec_for
from gemmgen.ops.spec_op import SpecOp, op
from gemmgen.ops.tuned import use_tuned
from gemmgen.ops.warmup import warmup

__all__ = [
    "FUSED_OPERATORS",
    "OPERATORS",
    "Blocked128x4",
    "FusedOp",
    "SpecOp",
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_nt_fp8out",
    "bf16_gemm_nt_mxfp8out",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "cast_back_from_nvfp4",
    "cast_to_mxfp4",
    "cast_to_mxfp8",
    "cast_to_nvfp4",
    "check_ue8m0",
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
    "from_blocked_128x4",
    "fuse",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_nt_contiguous",
    "mxfp4_gemm_nt",
    "nvfp4_gemm_nt",
    "op",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "requantise_to_ue8m0",
    "set_mk_alignment_for_contiguous_layout",
    "spec_for",
    "tf32_hc_prenorm_gemm",
    "to_blocked_128x4",
    "transform_sf_into_required_layout",
    "transpose_packed_fp4",
    "use_tuned",
    "warmup",
]
