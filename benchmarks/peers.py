"""Other libraries' products on a benchmark's problem, each left out with a sentence where it cannot be imported.

A peer says what it multiplies: dequantised factors, as block scaling does, or FP8 codes with one scale a tensor, which
is less work. cuBLAS comes with torch; DeepGEMM, QuACK and Triton are taken when they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from problem import Problem

Call = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """A library's call on a problem, and the output that it writes."""

    name: str
    call: Call
    output: Callable[[], torch.Tensor]
    scaled: bool = True
    """Whether its result is the product of dequantised factors."""


def peers(problem: Problem) -> tuple[list[Peer], dict[str, str]]:
    """Those that can serve the problem, and why others cannot, by name."""
    found, missing = [], {}
    for name, (module, make) in ADAPTERS.items():
        try:
            peer = make(import_module(module), problem)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            missing[name] = f"{name} is left out: {reason.splitlines()[0]}"
            continue
        if peer is not None:
            found.append(peer)
    return found, missing


def _into(problem: Problem, name: str, call: Callable[[torch.Tensor], object]) -> Peer:
    d = problem.output()
    return Peer(name, lambda: call(d), lambda: d)


def _cublas(_: Any, problem: Problem) -> Peer:
    a, b = problem.a, problem.b.t()
    if problem.kind == "bf16":
        return _into(problem, "cublas", lambda d: torch.mm(a, b, out=d))
    one, kept = torch.ones((), device="cuda"), []

    def call() -> None:
        kept[:] = [torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)]

    return Peer("cublas", call, lambda: kept[0], scaled=False)


def _deepgemm(library: Any, problem: Problem) -> Peer:
    if problem.kind == "bf16":
        return _into(problem, "deepgemm", lambda d: library.bf16_gemm_nt(problem.a, problem.b, d))
    a, b = (problem.a, problem.sfa), (problem.b, problem.sfb)
    return _into(problem, "deepgemm", lambda d: library.fp8_gemm_nt(a, b, d))


def _quack(library: Any, problem: Problem) -> Peer | None:
    if problem.kind == "fp8":
        return None  # it has no block scales on Hopper
    b = problem.b.mT
    return _into(problem, "quack", lambda d: library.gemm(problem.a, b, out=d))


def _triton(library: Any, problem: Problem) -> Peer:
    own = import_module("triton_gemm")
    return _into(problem, "triton", lambda d: own.gemm(problem, d))


ADAPTERS: dict[str, tuple[str, Callable[[Any, Problem], Peer | None]]] = {
    "cublas": ("torch", _cublas),
    "deepgemm": ("deep_gemm", _deepgemm),
    "quack": ("quack.gemm_interface", _quack),
    "triton": ("triton", _triton),
}
