"""What a result file says of where it was measured, which file a card has, and that cards' results stay apart."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gemmgen.ops.tuned import SHIPPED

RESULTS = Path(__file__).resolve().parent / "results"
LIBRARIES = ("deep_gemm", "triton")
"""Others that are measured beside ours and have versions of their own; cuBLAS comes with torch."""


def environment() -> dict[str, str]:
    """Card, versions and date."""
    from cuda.bindings import driver, nvrtc

    major, minor = nvrtc.nvrtcVersion()[1:]
    number = driver.cuDriverGetVersion()[1]
    return {
        "card": card(),
        "sms": str(torch.cuda.get_device_properties(0).multi_processor_count),
        "torch": torch.__version__,
        "nvrtc": f"{major}.{minor}",
        "cuda_driver": f"{number // 1000}.{number % 1000 // 10}",
        **versions(),
        "date": datetime.date.today().isoformat(),
    }


def card() -> str:
    """The GPU's name."""
    return torch.cuda.get_device_name()


@cache
def versions() -> dict[str, str]:
    """Of other libraries, as far as they can be imported."""
    found = {}
    for name in LIBRARIES:
        try:
            module = import_module(name)
        except Exception:  # one that is there and does not load is as good as none
            continue
        found[name] = str(getattr(module, "__version__", "of no version"))
    return found


def results_of(suite: str, name: str) -> Path:
    """The result file that a suite has for a card of this name; ends with a sentence where it has none."""
    if name not in SHIPPED:
        raise SystemExit(f"--json: there is no file for results of {name}, only of {', '.join(SHIPPED)}; name one")
    return RESULTS / f"{suite}_{Path(SHIPPED[name]).stem}.json"


def keep_apart(path: str | Path, name: str) -> None:
    """End with a sentence where the file has results of another card than that of this name."""
    try:
        kept = json.loads(Path(path).read_text())["environment"]["card"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return  # nothing is there, or nothing that says of a card
    if kept != name:
        raise SystemExit(
            f"--json {path}: has results of {kept}, which those of {name} would replace; name another file"
        )


def of_card(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """The result; ends with a sentence where the file's name says another card than the result does."""
    named = {Path(file).stem: name for name, file in SHIPPED.items()}.get(path.stem.rpartition("_")[2])
    card = result.get("environment", {}).get("card")
    if None not in (named, card) and named != card:
        raise SystemExit(
            f"{path}: has results of {card}, and its name says {named}; measure there, or name the file by its card"
        )
    return result


def same_card(argument: str, path: Path, found: str | None, wanted: str, fix: str) -> None:
    """End with a sentence where times are of another card than what they go beside; of some nobody says the card."""
    if found not in (None, wanted):
        raise SystemExit(f"{argument} {path}: has times of {found}, and they would go with those of {wanted}; {fix}")


def write(path: str | Path, rows: Sequence[dict[str, Any] | list[Any]], **extra: Any) -> None:
    """One JSON file: the environment, what was done, and the rows. It may not be another card's."""
    keep_apart(path, card())
    Path(path).write_text(json.dumps({"environment": environment(), **extra, "rows": list(rows)}, indent=1) + "\n")
