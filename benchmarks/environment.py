"""What a result file says of where it was measured."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, str]:
    """Card, versions and date."""
    from cuda.bindings import driver, nvrtc

    major, minor = nvrtc.nvrtcVersion()[1:]
    number = driver.cuDriverGetVersion()[1]
    return {
        "card": torch.cuda.get_device_name(),
        "sms": str(torch.cuda.get_device_properties(0).multi_processor_count),
        "torch": torch.__version__,
        "nvrtc": f"{major}.{minor}",
        "cuda_driver": f"{number // 1000}.{number % 1000 // 10}",
        "date": datetime.date.today().isoformat(),
    }


def write(path: str, rows: list[dict[str, Any]], **extra: Any) -> None:
    """One JSON file: the environment, what was done, and the rows."""
    Path(path).write_text(json.dumps({"environment": environment(), **extra, "rows": rows}, indent=1) + "\n")
