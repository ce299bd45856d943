"""Which of its forms ``tf32_hc_prenorm_gemm`` takes for a problem: how many CTAs there are, from an H200's times.

Measured for m of 13 to 16384, n of 24, k of 7168 and 28672, whole and in 16 slices, as ``benchmarks/prenorm.py
--forms`` does it; those times were not kept. CTAs that share a tile are as many as fill the GPU, 32 at most, with 4 K
blocks or more each (``SplitK.sharing``).
"""

from __future__ import annotations

from gemmgen.catalog import PrenormForms, PrenormShape


def choose(forms: PrenormForms, m: int, sms: int, slices: int | None = None) -> PrenormShape:
    """The shape for m rows on a GPU of so many SMs; ``slices`` are partial sums to leave, None for whole ones."""
    ctas = -(-m // forms.sole.m) * (slices or 1)
    if ctas <= sms:
        return forms.sole
    return forms.paired if slices is None or ctas <= sms * forms.paired.ctas_per_sm else forms.tall
