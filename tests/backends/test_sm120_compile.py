"""NVRTC compiles sm120 kernels for both chips without spills; forms that an H100 can run also for sm_90a."""

from __future__ import annotations

import pytest

from gemmgen import catalog
from gemmgen.backends import emit, lower
from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, tf32_gemm_nt
from gemmgen.catalog.grouped_sm120 import grouped_sm120
from gemmgen.commands.sass import disassemble
from gemmgen.ir import KernelSpec
from gemmgen.runtime.nvrtc import compile_cubin

NAMES = (
    "sm120_bf16_gemm_tn_f32_c_128x128_k64",
    "sm120_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_256x128_k64",
    "sm120_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_64x64_k64_x2",
    "sm120_fp8_fp4_gemm_nt_e2m1x32_e4m3x128_bf16_128x128",
    "sm120_mxfp4_gemm_nt_bf16_16x128_swap_split8",
    "sm120_nvfp4_gemm_nt_bf16_128x256_k64",
)
GROUPED = (
    "sm120_m_grouped_bf16_gemm_nt_bf16_16x128_swap_by_counts",
    "sm120_m_grouped_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_128x128_k64_by_ends",
    "sm120_m_grouped_fp8_fp4_gemm_nt_e2m1x32_e4m3x128_bf16_128x128_by_ids",
)
ON_HOPPER = (
    bf16_gemm("nn", WarpShape(128, 128, k_bytes=64)),
    bf16_gemm("nt", WarpShape(16, 128, warps=(8, 1), swap=True, splits=4)),
    tf32_gemm_nt(WarpShape(64, 64, warps=(2, 4))),
)


def check(spec: KernelSpec, chip: str) -> bytes:
    compiled = compile_cubin(emit(spec), chip, f"{spec.name}.cu")
    resources = compiled.resources[spec.name]
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0
    assert resources.registers * lower(spec).threads * spec.ctas_per_sm <= 65536
    code: bytes = compiled.code
    return code


@pytest.mark.parametrize("chip", ["sm_120a", "sm_121a"])
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_kernel_compiles_without_spills(name: str, chip: str) -> None:
    check(catalog.specs()[name], chip)


@pytest.mark.parametrize("name", GROUPED)
def test_a_kernel_for_groups_of_rows_compiles_without_spills(name: str) -> None:
    check(next(spec for spec in grouped_sm120() if spec.name == name), "sm_120a")


@pytest.mark.parametrize("spec", ON_HOPPER, ids=lambda spec: spec.name)
def test_the_same_text_compiles_for_hopper(spec: KernelSpec) -> None:
    check(spec, "sm_90a")


def test_copies_are_instructions_and_no_calls() -> None:
    """For sm_120, ptxas makes a call of a TMA load that names shared::cluster, and then ignores setmaxnreg."""
    sass = disassemble(check(catalog.specs()["sm120_mxfp4_gemm_nt_bf16_128x128_k64"], "sm_120a"))
    assert "UTMALDG.2D" in sass and "CALL" not in sass and sass.count("USETMAXREG") == 2
