"""P10: whatever kernel the rules pick for groups of k can be lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gemmgen.backends import lower
from gemmgen.catalog.k_grouped import SCALED
from gemmgen.ir import Arch, DType, KernelSpec
from gemmgen.ops.k_grouped import APART
from gemmgen.ops.k_selection import KSplit, bf16_spec, fp8_apart, scaled_spec

SMS = {Arch.SM90: 132, Arch.SM100: 148, Arch.SM120: 188}
COUNTS = KSplit("counts")
TAILS = (
    (DType.F32, False, False, False),
    (DType.F32, True, False, False),
    (DType.F32, False, False, True),
    (DType.BF16, True, False, False),
    (DType.F32, False, True, False),
    (DType.F32, True, True, False),
    (DType.F32, False, True, True),
)
"""The type of d, whether there is a C, whether lanes store, whether d is added to."""
Sizes = Mapping[str, int]


def problems() -> Iterator[Sizes]:
    """Narrow and wide outputs, of few groups and of many, whose tiles fill waves well and badly."""
    for m in (8, 768, 1408, 2048, 7168):
        for n in range(8, 4097, 40):
            for groups in (1, 8, 128):
                yield {"m": m, "n": n, "k": 4096 * groups, "g": groups}


def lowered(pick: Callable[[Sizes], KernelSpec]) -> set[str]:
    """Names of all that are picked, each lowered once."""
    specs = {spec.name: spec for spec in map(pick, problems())}
    for spec in specs.values():
        lower(spec)
    return set(specs)


def target(arch: Arch) -> Any:
    return SimpleNamespace(family=arch, sms=SMS[arch])


@pytest.mark.parametrize("arch", Arch)
def test_bf16(arch: Arch) -> None:
    for tail in TAILS:
        assert lowered(lambda sizes, tail=tail: bf16_spec(target(arch), sizes, COUNTS, *tail))


@pytest.mark.parametrize("sf_major", ["m", "k"])
def test_fp8_that_lies_apart(sf_major: str) -> None:
    for tail in TAILS:
        assert lowered(lambda sizes, tail=tail: fp8_apart(target(Arch.SM90), sizes, APART, sf_major, *tail).spec)


@pytest.mark.parametrize("arch", [Arch.SM100, Arch.SM120])
@pytest.mark.parametrize("product", SCALED, ids=lambda product: str(product.a.block))
def test_scaled(product: Any, arch: Arch) -> None:
    lying = product.lying("tn" if arch == Arch.SM100 else "nt")
    split = COUNTS._replace(alignment=32)
    for tail in TAILS:
        assert lowered(lambda sizes, tail=tail: scaled_spec(arch, SMS[arch], sizes, split, lying, *tail))
