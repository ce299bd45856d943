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
from agreement import inputs, on_gpu  # noqa: E402

from gemmgen import catalog  # noqa: E402
from gemmgen.runtime.gpu_target import GpuTarget  # noqa: E402

KERNELS = (
    "sm90_fp8_gemm_nt_bf16_64x32",
    "sm90_fp8_gemm_nt_bf16_64x64_x2",
    "sm90_fp8_gemm_nt_bf16_128x128",
    "sm90_fp8_gemm_nt_bf16_128x176",
    "sm90_fp8_gemm_nt_bf16_128x256",
    "sm90_fp8_gemm_nt_bf16_256x128_c21",
    "sm90_fp8_gemm_nt_bf16_direct_64x128",
    "sm90_fp8_gemm_nt_ksf_bf16_128x128",
    "sm90_fp8_gemm_nt_1d1d_f32_c_128x128",
    "sm90_bf16_gemm_nt_bf16_64x16",
    "sm90_bf16_gemm_nt_bf16_128x256",
    "sm90_bf16_gemm_nt_bf16_128x256_c21",
    "sm90_bf16_gemm_nt_bf16_256x128_c12",
    "sm90_bf16_gemm_nt_bf16_192x176",
    "sm90_bf16_gemm_nn_bf16_64x128",
    "sm90_bf16_gemm_tn_f32_c_128x128",
    "sm90_bf16_gemm_tt_f32_direct_64x128",
)


def pretend(sms: int) -> None:
    """Grids as on a GPU of that many SMs."""
    GpuTarget.sms = property(lambda target: sms)  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sms", type=int, help="launch grids for so few SMs; as many as there are if left out")
    sms = parser.parse_args().sms
    if sms is not None:
        pretend(sms)
    for name in KERNELS:
        spec = catalog.specs()[name]
        reference.check(on_gpu(spec), spec, inputs(spec))
        print(name, "right", flush=True)


if __name__ == "__main__":
    main()
