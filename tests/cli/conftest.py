"""Shared by the command-line tests: the command in this process, with what it printed and its status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemmgen import cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "first_spec.py"


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def gemmgen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``gemmgen("plan", NAME)`` as the shell would run it, piped."""

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["gemmgen", *map(str, words)])
        capsys.readouterr()
        status = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        return Done(status, printed.out, printed.err)

    return run


@pytest.fixture
def example() -> str:
    """The README's first spec as a TARGET."""
    return f"{EXAMPLE}:first"
