"""The forms a spec can be printed in. Apart from ``emit`` so that the command line loads no backend to name them."""

from __future__ import annotations

from enum import StrEnum


class Form(StrEnum):
    """What ``--as`` may name."""

    CUDA = "cuda"
    PTX = "ptx"
    SASS = "sass"
    PLAN = "plan"
    JSON = "json"
