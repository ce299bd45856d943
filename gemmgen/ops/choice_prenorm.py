"""Which of its forms ``tf32_hc_prenorm_gemm`` takes for a problem: how many CTAs there are, from an H200's times.

Measured for m of 13 to 16384, n of 24, k of 7168 and 28672, whole and in 16 slices, as ``benchmarks/prenorm.py
--forms`` does it; those times were not kept. CTAs that share a tile are as many as fill the GPU, 32 at most, with 4 K
blocks or more each (``SplitK.sharing``).
"""

from __future__ import annotations

from functools import cache

from gemmgen import catalog
from gemmgen.catalog import PrenormForms, PrenormShape
from gemmgen.ir import Arch, KernelSpec
from gemmgen.runtime.errors import UnsupportedArchitecture

PRENORM = "tf32_hc_prenorm_gemm"


def choose(
    forms: PrenormForms, m: int, sms: int, slices: int | None = None, deterministic: bool = False
) -> PrenormShape:
    """The shape for m rows on a GPU of so many SMs; ``slices`` are partial sums to leave, None for whole ones.

    A ``deterministic`` one is the same for any m.
    """
    if deterministic:
        return forms.paired
    ctas = -(-m // forms.sole.m) * (slices or 1)
    if ctas <= sms:
        return forms.sole
    return forms.paired if slices is None or ctas <= sms * forms.paired.ctas_per_sm else forms.tall


@cache
def prenorm_spec(
    m: int, n: int, sms: int, arch: str, slices: int | None = None, deterministic: bool = False
) -> KernelSpec:
    """The spec for so many rows and columns; ``slices`` leaves as many partial sums, one for each split of k."""
    if arch not in catalog.PRENORM_COLUMNS:
        archs = " and ".join(catalog.PRENORM_COLUMNS)
        raise UnsupportedArchitecture(f"{PRENORM}: there is no kernel for {arch}; it runs on {archs}")
    widths = catalog.PRENORM_COLUMNS[Arch(arch)]
    columns = next((width for width in widths if n <= width), widths[-1])
    shape = choose(catalog.prenorm_forms(Arch(arch), columns), m, sms, slices, deterministic)
    return catalog.tf32_hc_prenorm_gemm(shape, slices is not None, Arch(arch))
