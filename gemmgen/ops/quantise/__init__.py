"""Quantisers, dequantisers and layouts of scales: pure torch, on any device, one set of rules for all of it.

A number is ``code * scale`` of its granule, for NVFP4 also times the tensor's scale. Let ``amax`` be the largest
magnitude of a granule in fp32, not taken below 1e-4 (``AMAX_FLOOR``), and ``largest`` 448 for e4m3 and 6 for e2m1:

* An fp32 scale is ``amax / largest``, rounded to nearest, at least 2**-126.
* A UE8M0 scale is rounded *up*: the smallest power of two ``s`` with ``amax <= largest * s``, at least 2**-126. On
  bits: the exponent of ``amax`` less 8 (e4m3) or 2 (e2m1), one more if the mantissa exceeds that of ``largest``.
* A UE4M3 scale (NVFP4) is ``max |y| / 6`` to the nearest UE4M3 number from 2**-9 to 448, where ``y`` is
  ``x * (1 / tensor scale)``; the tensor scale is ``amax`` of the whole tensor over 2688.
* A code is ``x * (1 / scale)``, with the *rounded* scale, to nearest even and saturating, as ``cvt.rn.satfinite``
  does it; signs are kept, so -0.0 and negative numbers that are too small become negative zero.
* A granule of zeros has zero codes under the scale that ``amax`` 1e-4 gives: 2**-22 for e4m3 and 2**-15 for e2m1 with
  UE8M0 scales; for NVFP4 it is 2**-9. It comes back as zeros.
* A granule that holds NaN or Inf has a NaN scale (fp32 NaN, 0xff, 0x7f) and the codes that NaN converts to, 0x7f or 7:
  it comes back as NaN, all of it. So is a tensor scale, and the tensor with it, unless a finite one is passed in.
* The last granule of a row may be short: what is missing counts as zeros and is not stored.
* Codes are contiguous along the last axis, however the numbers lie: a transposed view is quantised as its copy.

Scales of data that exists are never rounded: fp32 scales that are packed keep their value, or become NaN where UE8M0
has no such value; ``check_ue8m0`` says which, and ``requantise_to_ue8m0`` makes data and scales anew.
"""

from gemmgen.ops.quantise.blocks import align, ceil_div
from gemmgen.ops.quantise.cast import (
    AMAX_FLOOR,
    cast_to_mxfp4,
    cast_to_mxfp8,
    cast_to_nvfp4,
    nvfp4_tensor_scale,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
)
from gemmgen.ops.quantise.cast_back import (
    cast_back_from_fp4,
    cast_back_from_fp8,
    cast_back_from_nvfp4,
    requantise_to_ue8m0,
)
from gemmgen.ops.quantise.formats import decode_ue8m0, pack_fp4, transpose_packed_fp4, unpack_fp4
from gemmgen.ops.quantise.k_grouped import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
from gemmgen.ops.quantise.layout import (
    from_blocked_128x4,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    to_blocked_128x4,
)
from gemmgen.ops.quantise.required import transform_sf_into_required_layout
from gemmgen.ops.quantise.ue8m0 import (
    ceil_to_ue8m0,
    check_ue8m0,
    is_ue8m0,
    pack_ue8m0_to_int,
    unpack_ue8m0_from_int,
)

__all__ = [
    "AMAX_FLOOR",
    "align",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "cast_back_from_nvfp4",
    "cast_to_mxfp4",
    "cast_to_mxfp8",
    "cast_to_nvfp4",
    "ceil_div",
    "ceil_to_ue8m0",
    "check_ue8m0",
    "decode_ue8m0",
    "from_blocked_128x4",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size",
    "is_ue8m0",
    "nvfp4_tensor_scale",
    "pack_fp4",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "requantise_to_ue8m0",
    "to_blocked_128x4",
    "transform_sf_into_required_layout",
    "transpose_packed_fp4",
    "unpack_fp4",
    "unpack_ue8m0_from_int",
]
