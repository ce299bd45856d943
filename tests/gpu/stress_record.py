"""The file that `test_stress.py` writes where ``GEMMGEN_STRESS_JSON`` names one: where, when, what ran, how it ended.

It is written again after each test, so that one which does not end leaves what those before it found.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agreement import digest
from stress_plan import Launch, counts, shipped

VARIABLE = "GEMMGEN_STRESS_JSON"
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "stress_h200.json"
"""The one that is kept."""


def asked_for() -> Path | None:
    """The file that a caller wants."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


@dataclass
class Record:
    """What is written, after each test if there is a path."""

    path: Path | None
    environment: dict[str, Any]
    launches: Sequence[Launch]
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if the file has what ran on another card."""
        if self.path is not None and self.path.exists():
            kept = json.loads(self.path.read_text())["environment"]["card"]
            if kept != self.environment["card"]:
                raise ValueError(
                    f"{VARIABLE}={self.path}: has what ran on {kept}, which {self.environment['card']} would replace; "
                    "name another file"
                )

    @contextmanager
    def of(self, test: str) -> Iterator[None]:
        """Keeps how the test inside ends, in words, and its seconds."""
        began = time.perf_counter()
        self._ended(test, "did not end", 0.0)
        try:
            yield
        except BaseException as error:
            first = f"{type(error).__name__}: {error}".splitlines()[0]
            self._ended(test, f"failed: {first[:300]}", time.perf_counter() - began)
            raise
        self._ended(test, "passed", time.perf_counter() - began)

    def _ended(self, test: str, result: str, seconds: float) -> None:
        self.tests[test] = {"result": result, "seconds": round(seconds, 2)}
        if self.path is not None:
            self.path.write_text(self.text())

    def text(self) -> str:
        """JSON with a line a kernel."""
        found = counts(self.launches, self.environment["sms"], self.environment["card"])
        kernels = [
            {
                "kernel": name,
                "digest": digest(spec),
                "named": found.named.get(name, 0),
                "early": found.early.get(name, 0),
                "by_operator": found.by_operator.get(name, 0),
            }
            for name, spec in shipped().items()
        ]
        head = {
            "environment": self.environment,
            "what": "launches of random problems, back to back and on two streams; each named kernel also early",
            "launches": len(self.launches),
            "taken_by_operators": len(found.by_operator),
            "tests": self.tests,
            "forms": dict(sorted(found.forms.items())),
        }
        lines = ",\n".join(f"  {json.dumps(each)}" for each in kernels)
        return f'{json.dumps(head, indent=1)[:-2]},\n "kernels": [\n{lines}\n ]\n}}\n'
