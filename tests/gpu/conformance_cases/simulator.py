"""Runs cases on the PTX interpreter through its public names."""

from __future__ import annotations

from functools import cache
from typing import Any

from .case import Array, Case, In, Out
from .compilation import compile_source, encoded


class Simulator:
    """Runs cases on the interpreter."""

    def __init__(self, arch: str, schedule: str = "random", seed: int = 0) -> None:
        from gemmgen import sim

        self.sim, self.arch, self.schedule, self.seed = sim, arch, schedule, seed

    @cache  # noqa: B019 - one simulator lives as long as the process
    def module(self, source: str) -> Any:
        return self.sim.load(compile_source(source, self.arch, "ptx").decode().rstrip("\0"))

    def run(self, case: Case) -> list[Array]:
        gpu = self.sim.Gpu(schedule=self.sim.Schedule(self.schedule, seed=self.seed), sms=4)
        arrays = [p.data.copy() if isinstance(p, In | Out) else None for p in case.parameters]
        addresses = [0 if a is None else gpu.map(a, name=f"parameter {i}") for i, a in enumerate(arrays)]
        params = [encoded(p, addresses, i, self.sim.encode_tensor_map) for i, p in enumerate(case.parameters)]
        gpu.launch(
            self.module(case.source),
            case.kernel,
            grid=case.grid,
            block=case.block,
            cluster=case.cluster,
            shared_bytes=case.shared_bytes,
            params=params,
        )
        return [
            a
            for a, p in zip(arrays, case.parameters, strict=True)
            if isinstance(p, Out) and p.compared and a is not None
        ]
