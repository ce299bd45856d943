"""Small runs of every kernel form for compute-sanitizer, each checked against its exact result.

compute-sanitizer --tool memcheck --report-api-errors no python tests/gpu/sanitize.py
compute-sanitizer --tool synccheck python tests/gpu/sanitize.py
compute-sanitizer --tool racecheck python tests/gpu/sanitize.py
compute-sanitizer --tool racecheck python tests/gpu/sanitize.py --sms 1

With ``--sms 1`` one CTA (or cluster) walks all tiles, so that slots of rings come round.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import reference  # noqa: E402
import torch  # noqa: E402
from agreement import inputs, on_gpu  # noqa: E402
from grouped_launch import ragged  # noqa: E402

from gemmgen import catalog  # noqa: E402
from gemmgen.commands.running import execute  # noqa: E402
from gemmgen.commands.targets import Sizes  # noqa: E402
from gemmgen.ir import Bias, DType, KernelSpec, Operand  # noqa: E402
from gemmgen.runtime.gpu_target import GpuTarget  # noqa: E402

KERNELS = (
    "sm90_fp8_gemm_nt_bf16_64x32",
    "sm90_fp8_gemm_nt_bf16_64x64_x2",
    "sm90_fp8_gemm_nt_bf16_128x128",
    "sm90_fp8_gemm_nt_bf16_128x176",
    "sm90_fp8_gemm_nt_bf16_128x256",
    "sm90_fp8_gemm_nt_bf16_256x128_c21",
    "sm90_fp8_gemm_nt_bf16_128x160_share",
    "sm90_fp8_gemm_nt_bf16_64x64_s8_x2",
    "sm90_fp8_gemm_nt_bf16_16x128_swap_x2",
    "sm90_fp8_gemm_nt_bf16_8x128_swap_s4_x2",
    "sm90_fp8_gemm_nt_bf16_direct_64x128",
    "sm90_fp8_gemm_nt_ksf_bf16_128x128",
    "sm90_fp8_gemm_nt_1d1d_f32_c_128x128",
    "sm90_bf16_gemm_nt_bf16_16x64_swap_x2",
    "sm90_bf16_gemm_nt_bf16_144x128_swap",
    "sm90_bf16_gemm_nt_bf16_200x192_swap",
    "sm90_bf16_gemm_nt_bf16_24x64_swap_s8_x2",
    "sm90_bf16_gemm_nt_bf16_64x96_share",
    "sm90_bf16_gemm_nt_bf16_80x192_swap_share",
    "sm90_bf16_gemm_nt_bf16_64x16",
    "sm90_bf16_gemm_nt_bf16_128x256",
    "sm90_bf16_gemm_nt_bf16_128x256_c21",
    "sm90_bf16_gemm_nt_bf16_256x128_c12",
    "sm90_bf16_gemm_nt_bf16_192x176",
    "sm90_bf16_gemm_nn_bf16_64x128",
    "sm90_bf16_gemm_tn_f32_c_128x128",
    "sm90_bf16_gemm_tt_f32_direct_64x128",
)


GROUPED = (
    "sm90_m_grouped_fp8_gemm_nt_bf16_192x128_by_ids_a128",
    "sm90_m_grouped_fp8_gemm_nt_mxfp8out_192x128_by_ids_a128",
    "sm90_m_grouped_fp8_gemm_nt_bf16_192x128_by_ends",
    "sm90_m_grouped_fp8_gemm_nt_bf16_192x128_by_counts",
    "sm90_m_grouped_fp8_gemm_nt_bf16_128x256_c21_by_counts",
    "sm90_m_grouped_fp8_gemm_nt_bf16_256x128_by_ends_a128_zero",
    "sm90_m_grouped_fp8_gemm_nt_bf16_32x128_swap_by_counts",
    "sm90_m_grouped_bf16_gemm_nt_bf16_128x256_by_ids",
)
"""Groups of rows: found by a launch, by ends, by counts with pairs, with zeros between them, and of few rows."""

ADDING = (
    "sm90_k_grouped_fp8_gemm_nt_1d1d_f32_256x128_add_by_counts_a128_apart",
    "sm90_k_grouped_fp8_gemm_nt_1d1d_f32_192x128_add_by_counts_a128_apart",
    "sm90_k_grouped_bf16_gemm_tn_f32_128x256_add_by_counts",
)
"""Groups of k, added to sums, which L2 is asked for in FP8."""
ADDED = Sizes(m=296, n=200, k=1280)

BIASED = (
    "sm90_fp8_gemm_nt_bf16_128x256",
    "sm90_fp8_gemm_nt_bf16_128x144",
    "sm90_fp8_gemm_nt_bf16_64x64_s8_x2",
    "sm90_bf16_gemm_nt_bf16_128x128",
)
"""With a bias behind them: sums that start from it, read a tile ahead or at a start, and a chain."""


def biased(spec: KernelSpec, dtype: DType = DType.F32) -> KernelSpec:
    """The same kernel, which adds a bias along n."""
    operands = (Operand(name="bias", dtype=dtype, box=("n",)), *spec.operands)
    return spec.replace(
        name=f"{spec.name}_{dtype}_bias", operands=operands, epilogue=(Bias(vector="bias"), *spec.epilogue)
    )


def pretend(sms: int) -> None:
    """Grids as on a GPU of that many SMs."""
    GpuTarget.sms = property(lambda target: sms)  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sms", type=int, help="launch grids for so few SMs; as many as there are if left out")
    parser.add_argument("--match", default="", help="only kernels whose name has this in it")
    given = parser.parse_args()
    if given.sms is not None:
        pretend(given.sms)
    specs = catalog.specs()
    with_bias = [biased(specs[name], dtype) for name in BIASED for dtype in (DType.F32, DType.BF16)]
    for spec in (*(specs[name] for name in KERNELS), *with_bias):
        if given.match in spec.name:
            reference.check(on_gpu(spec), spec, inputs(spec))
            print(spec.name, "right", flush=True)
    for name in GROUPED:
        if given.match in name:
            ragged(catalog.grouped_specs()[name]).run()
            print(name, "right", flush=True)
    adding = {spec.name: spec for spec in catalog.k_grouped()}
    for name in ADDING:
        if given.match in name:
            outcome = execute(adding[name], ADDED, torch.device("cuda"), "early", seed=0)
            assert not outcome.wrong, outcome.errors
            print(name, "right", flush=True)


if __name__ == "__main__":
    main()
