"""When warps run and when asynchronous work lands: early, late, random or starving, from a seed.
It decides order only; it may not know what the work is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MODES = ("early", "late", "random", "starve")


@dataclass
class Schedule:
    """A hostile or friendly timing. A correct kernel gives one answer under all of them."""

    mode: str = "random"
    seed: int = 0
    rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"schedule mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        self.reset()

    def reset(self) -> None:
        self.rng = random.Random(f"{self.mode}/{self.seed}")

    def lands_at_issue(self, kind: str) -> bool:
        """Whether asynchronous work of this kind happens the moment it is issued."""
        if kind == "bulk_store":
            return self.mode == "early"
        if self.mode == "random":
            return self.rng.random() < 0.3
        return self.mode in ("early", "starve")

    def lands_now(self) -> bool:
        """Whether to land one piece of pending work before running the next warp."""
        return self.mode == "random" and self.rng.random() < 0.3

    def starved(self, warps: int, warps_per_cta: int) -> set[int]:
        """Indices of the warps that run only when no other can."""
        if self.mode != "starve":
            return set()
        chosen = {index for index in range(warps) if self.rng.random() < 0.4}
        ctas = warps // warps_per_cta
        if ctas > 1 and self.rng.random() < 0.5:
            victim = self.rng.randrange(ctas)
            chosen = set(range(victim * warps_per_cta, (victim + 1) * warps_per_cta))
        return chosen

    def choose(self, count: int, last: int) -> int:
        """Which of count runnable warps goes next."""
        if self.mode in ("random", "starve"):
            return self.rng.randrange(count)
        return last % count

    def budget(self) -> int:
        """Instructions a warp may run before another gets its turn."""
        return self.rng.choice((20, 200, 2000)) if self.mode in ("random", "starve") else 2000

    def refuses(self) -> bool:
        """Whether a clusterlaunchcontrol request fails although clusters are left: they are launched after all."""
        return self.mode in ("random", "starve") and self.rng.random() < 0.15

    def yields(self) -> bool:
        """Whether a warp lets others run right after it arrived somewhere."""
        return self.mode != "random" or self.rng.random() < 0.7


def all_schedules(seeds: int = 1) -> list[Schedule]:
    """Every mode, the seeded ones with each seed."""
    plain = [Schedule("early"), Schedule("late")]
    return plain + [Schedule(mode, seed) for mode in ("random", "starve") for seed in range(seeds)]
