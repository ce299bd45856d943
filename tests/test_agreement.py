"""The file that tests/gpu/agreement.py writes: what it says, without a GPU, and that those of before are still read."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "gpu"))

import agreement

from gemmgen import catalog
from gemmgen.ops.kernels import kernel_of

TOP = Path(__file__).parents[1]
NAME = "sm90_fp8_gemm_nt_bf16_16x32_s1_x2"
SPEC = catalog.specs()[NAME]


def test_the_file_says_where_and_when_and_what_text_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The simulator's part is replaced: the file is what is looked at."""
    file = tmp_path / "agreement.json"

    class Pool:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def map(self, _: object, names: list[str], __: object) -> list[tuple[str, Any, float]]:
            return [(name, agreement.empty_output(catalog.specs()[name], "cpu"), 0.1) for name in names]

    monkeypatch.setattr(agreement, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(agreement.reference, "check", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["agreement.py", "--sim-only", "--match", NAME, "--json", str(file)])
    with pytest.raises(SystemExit, match="0"):
        agreement.main()
    result = json.loads(file.read_text())
    assert set(result["environment"]) == {"card", "torch", "nvrtc", "date"} and result["environment"]["card"] is None
    digests = {row["kernel"]: row["digest"] for row in result["rows"]}
    assert digests[NAME] == hashlib.sha256(kernel_of(SPEC).text.source.encode()).hexdigest()[:16]
    assert agreement.changed(result, [SPEC]) == []


def test_kernels_that_changed_since_are_named() -> None:
    row = {"kernel": NAME, "digest": "0" * 16}
    assert agreement.changed({"rows": [row]}, [SPEC]) == [NAME]
    assert agreement.changed({"rows": []}, [SPEC]) == [NAME]
    assert agreement.changed({"rows": [row | {"digest": agreement.digest(SPEC)}]}, [SPEC]) == []


def test_a_file_from_before_digests_says_nothing_of_how_kernels_are_now() -> None:
    result = json.loads((TOP / "benchmarks" / "results" / "agreement_h200.json").read_text())
    old = {**result, "rows": [{key: row[key] for key in row if key != "digest"} for row in result["rows"]]}
    assert agreement.changed(old, [SPEC]) == [NAME]
