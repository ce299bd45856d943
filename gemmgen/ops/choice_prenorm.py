"""Which of its forms ``tf32_hc_prenorm_gemm`` takes for a problem: two comparisons, from an H100's times.

Measured for m of 13 to 8192, n of 24, k of 7168 and 28672 (benchmarks/prenorm.py): an extra CTA a tile costs a meeting
and a launch that clears counters, which two of them do not earn back; and slices that wait for one another's SM want
less traffic, where those that all fit want an early start.
"""

from __future__ import annotations

from gemmgen.catalog import PrenormForms, PrenormShape

FEWEST_SHARING = 3
"""CTAs a tile from which on sharing its K blocks pays."""


def choose(forms: PrenormForms, m: int, sms: int, slices: int | None = None) -> PrenormShape:
    """The shape for m rows on a GPU of so many SMs; ``slices`` are partial sums to leave, None for whole ones."""
    if slices is None:
        tiles = -(-m // forms.few.m)
        return forms.few if tiles * FEWEST_SHARING <= sms else forms.many
    shape = forms.few_slices
    return shape if -(-m // shape.m) * slices <= sms * shape.ctas_per_sm else forms.many_slices
