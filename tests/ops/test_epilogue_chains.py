"""Chains of epilogue steps on the simulator of each architecture, against what the steps mean in float64."""

from __future__ import annotations

from typing import Any

import chains
import pytest
from drawn_chains import DRAWN, EXPRESSIONS, FIXED, check_chain
from hypothesis import given, settings

from gemmgen.ir import DType


@pytest.mark.parametrize("arch", chains.BASES)
@settings(FIXED, max_examples=6)
@given(**DRAWN)
def test_any_chain(arch: str, **case: Any) -> None:
    check_chain(arch, **case)


@pytest.mark.parametrize("arch", chains.BASES)
def test_every_function_of_an_expression(arch: str) -> None:
    chain = [chains.apply(index, text, *alongs) for index, (text, alongs) in enumerate(EXPRESSIONS)]
    chains.run_and_check(chains.chained(arch, DType.F32, chain), {"m": 70, "n": 40, "k": 64}, seed=1)
