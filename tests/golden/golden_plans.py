"""The plan prints that reviewers read. Run this file to rewrite them: ``python tests/golden/golden_plans.py``."""

from __future__ import annotations

from pathlib import Path

from gemmgen import catalog
from gemmgen.backends import lower, table

FOLDER = Path(__file__).parent / "plans"
NAMES = (
    "sm90_fp8_gemm_nt_bf16_64x16",
    "sm90_fp8_gemm_nt_bf16_64x64_x2",
    "sm90_fp8_gemm_nt_bf16_16x64_s4_x2",
    "sm90_bf16_gemm_nt_bf16_128x48_s8",
    "sm90_fp8_gemm_nt_bf16_128x128",
    "sm90_fp8_gemm_nt_bf16_128x176",
    "sm90_fp8_gemm_nt_bf16_128x192_cut3",
    "sm90_fp8_gemm_nt_bf16_256x128_c21",
    "sm90_fp8_gemm_nt_1d1d_ksf_f32_c_direct_64x128",
    "sm90_bf16_gemm_nt_bf16_192x176",
    "sm90_bf16_gemm_nt_bf16_256x128_c12",
    "sm90_bf16_gemm_tn_f32_c_128x128",
    "sm90_tf32_hc_prenorm_gemm_64x24_k128_shared",
    "sm90_tf32_hc_prenorm_gemm_64x24_x2",
    "sm90_tf32_hc_prenorm_gemm_slices_64x32_x2",
    "sm100_tf32_hc_prenorm_gemm_128x32",
    "sm100_bf16_gemm_nn_bf16_256x256",
    "sm100_bf16_gemm_nt_bf16_c_direct_128x128",
    "sm100_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_128x16",
    "sm100_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_256x224",
    "sm100_fp8_fp4_gemm_nt_e4m3x128_e2m1x32_bf16_128x128",
    "sm100_mxfp4_gemm_nt_bf16_128x64",
    "sm100_nvfp4_gemm_nt_bf16_256x256",
    "sm100_nvfp4_gemm_nt_f32_c_16x128_swap",
    "sm100_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_256x224_clc",
    "sm100_tf32_gemm_nt_f32_256x256",
    "sm120_bf16_gemm_nn_bf16_128x128_k64",
    "sm120_bf16_gemm_nt_bf16_16x128_swap_split4",
    "sm120_fp8_gemm_nt_e4m3x128_e4m3x32_bf16_128x128_k64",
    "sm120_fp8_fp4_gemm_nt_e4m3x128_e2m1x32_bf16_128x128",
    "sm120_mxfp4_gemm_nt_bf16_64x64_k64_x2",
    "sm120_nvfp4_gemm_nt_bf16_128x256_k64",
    "sm120_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_direct_64x128",
    "sm120_k_major_e2m1",
    "sm100_pack_ue8m0_128x1",
    "sm90_m_grouped_fp8_gemm_nt_bf16_128x192_by_ids",
    "sm90_m_grouped_fp8_gemm_nt_bf16_192x128_by_ids_a128",
    "sm90_m_grouped_fp8_gemm_nt_bf16_256x128_by_ends",
    "sm90_m_grouped_fp8_gemm_nt_bf16_16x128_swap_by_ends",
    "sm100_m_grouped_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_32x128_swap_by_counts",
    "sm120_m_grouped_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_128x128_k64_by_ends_a128",
    "sm90_k_grouped_fp8_gemm_nt_1d1d_f32_192x128_add_by_counts_a128_apart",
)


def path(name: str) -> Path:
    """The golden file of a kernel."""
    return FOLDER / f"{name}.txt"


def print_of(name: str) -> str:
    """The plan of a shipped kernel as ``gemmgen plan`` prints it."""
    return table(lower(catalog.all_specs()[name]))


def rewrite() -> None:
    """Make the folder hold exactly the present prints."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in NAMES:
        path(name).write_text(print_of(name), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
