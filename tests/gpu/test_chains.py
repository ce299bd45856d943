"""A fixed set of chains of epilogue steps on a GPU: those that the simulator's property test draws first, and more.

compute-sanitizer --tool memcheck python -m pytest tests/gpu/test_chains.py
"""

from __future__ import annotations

from typing import Any

from drawn_chains import DRAWN, FIXED, check_chain
from hypothesis import given, settings

CHAINS = 60


@settings(FIXED, max_examples=CHAINS)
@given(**DRAWN)
def test_chains(**case: Any) -> None:
    check_chain("sm90", **case, device="cuda")
