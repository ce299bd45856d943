"""Operator tests decide themselves whether they simulate."""

from __future__ import annotations

import pytest

from gemmgen.runtime.simulation import SIMULATE_VARIABLE


@pytest.fixture(autouse=True)
def not_asked_to_simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIMULATE_VARIABLE, raising=False)
