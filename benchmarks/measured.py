"""What was measured, by the names of its files, and how it is summed up."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from environment import of_card

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "benchmarks" / "results"
BESIDE = {"deep_gemm": "DeepGEMM", "triton": "Triton"}
"""Libraries whose versions files have, but for those from before they were kept."""
Row = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """A result, which must be the card's that its name says."""
    return of_card(RESULTS / name, json.loads((RESULTS / name).read_text()))


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def environment(result: dict[str, Any]) -> str:
    env = result["environment"]
    driver = f"driver for CUDA {env['cuda_driver']}, " if "cuda_driver" in env else ""
    beside = "".join(f"{words} {env[name]}, " for name, words in BESIDE.items() if name in env)
    return (
        f"{env['card']} ({env['sms']} SMs), {driver}NVRTC {env['nvrtc']}, torch {env['torch']}, {beside}{env['date']}"
    )


def peers() -> dict[tuple[str, int, int, int], float]:
    """DeepGEMM's time over cuBLAS's by problem."""
    return {
        (r["kind"], r["m"], r["n"], r["k"]): r["deepgemm_us"] / r["cublas_us"] for r in load("peers_h100.json")["rows"]
    }


def over(row: Row, name: str, base: str) -> str:
    return f"{row[f'{name}_us'] / row[f'{base}_us']:.3f}"
