"""Which launches `test_stress.py` makes: half leave the kernel to the operator, half name one of those that ship.

The operator's rule takes a third of the kernels for problems drawn at random, so the other half deals every kernel out,
once as it is and once launched early, and what is left to the forms that few kernels have. A named kernel gets a
problem in which its schedule does what it is for. Pure functions: no GPU is asked.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from gemmgen import catalog, ops
from gemmgen.catalog import Shape
from gemmgen.ir import ClusterSplitK, CutRemainder, KernelSpec, SplitK, Wgmma

COUNT, NAMED = 1000, 500
ROWS, COLUMNS, LENGTH = 2048, 4096, 8192
"""The largest extents; K blocks of the longest k are enough for eight CTAs whose rings come round."""
LEAST_LENGTH = 64
"""Of named kernels' problems, for rings to come round in most; operators get shorter ones too."""
STORED_BY_TMA = 8
"""Columns of bf16 in the 16 bytes that TMA stores at least."""
TRIES = 100_000
LEAST = 10
"""Launches that every form gets, of named kernels."""
BEHIND = ("cut_remainder, behind full waves", "split_k, behind full waves")


@dataclass(frozen=True)
class Launch:
    """One call: of the operator, or of a kernel by its name, on a corner of the factors."""

    fp8: bool
    m: int
    n: int
    k: int
    kernel: str | None = None
    early: bool = False

    @property
    def operator(self) -> str:
        """The operator's name."""
        return "fp8_gemm_nt" if self.fp8 else "bf16_gemm_nt"

    def taken(self, sms: int, card: str | None) -> KernelSpec:
        """The kernel that serves it on such a GPU."""
        if self.kernel is not None:
            return spec_of(self.kernel, self.early)
        direct = self.n % STORED_BY_TMA != 0
        return ops.spec_for(self.operator, self.m, self.n, self.k, sms, card=card, direct_store=direct)


@cache
def shipped() -> dict[str, KernelSpec]:
    """Every kernel that either operator may take for D in bf16 without C, by name."""
    found = [*_of(catalog.FP8_SHAPES, catalog.fp8_gemm_nt), *_of(catalog.BF16_SHAPES, _bf16)]
    return {spec.name: spec for spec in found}


@cache
def spec_of(kernel: str, early: bool) -> KernelSpec:
    """A shipped kernel by its name, as it is or launched early."""
    return catalog.launched_early(shipped()[kernel]) if early else shipped()[kernel]


def _of(shapes: Iterable[Shape], make: Callable[..., KernelSpec]) -> list[KernelSpec]:
    return [*map(make, shapes), *(make(shape, direct_store=True) for shape in catalog.DIRECT_SHAPES)]


def _bf16(shape: Shape, direct_store: bool = False) -> KernelSpec:
    return catalog.bf16_gemm("nt", shape, direct_store=direct_store)


# ------------------------------------------------------------------------------------------------ forms of kernels


def forms(spec: KernelSpec) -> tuple[str, ...]:
    """What a kernel stands for: its schedule, and each of the others that it is of."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    schedule = _schedule(spec)
    others = {
        f"swapped, {schedule.partition(',')[0]}": body.swap_ab,
        f"{spec.ctas_per_sm} CTAs an SM": spec.ctas_per_sm > 1,
        "CTAs that share copies": spec.cluster.size > 1,
        "direct store": _stores_any_row(spec),
        "early": spec.programmatic_launch,
        "early, weights read ahead": bool(spec.ahead),
    }
    return (schedule, *(name for name, is_one in others.items() if is_one))


def _schedule(spec: KernelSpec) -> str:
    schedule = spec.schedule
    return f"{schedule.kind}, {schedule.splits}" if isinstance(schedule, ClusterSplitK) else schedule.kind


def _stores_any_row(spec: KernelSpec) -> bool:
    """Swapped kernels of few rows store without TMA too, but are never taken for rows that it cannot store."""
    return "_direct_" in spec.name


def does_its_part(spec: KernelSpec, m: int, n: int, k: int, sms: int) -> bool:
    """Whether a problem makes the kernel do what its schedule is for.

    CTAs walk more than one tile; tiles of the last wave are cut; their K blocks are shared; each CTA of a cluster has
    some, and there are CTAs enough for SMs to have as many as the kernel was made for.
    """
    units, at_once = _waves(spec, m, n, sms)
    schedule, blocks = spec.schedule, -(-k // spec.tile.k)
    if isinstance(schedule, CutRemainder):
        return schedule.waves(units, at_once)[1] > 0
    if isinstance(schedule, SplitK):
        return schedule.shared(units, at_once) > 0 and schedule.sharing(units, at_once, blocks) > 1
    if isinstance(schedule, ClusterSplitK):
        return blocks > schedule.splits and units * schedule.splits > sms * (spec.ctas_per_sm - 1)
    return units > at_once


def behind_full_waves(spec: KernelSpec, m: int, n: int, sms: int) -> bool:
    """Whether tiles that are cut, or shared, come behind whole ones."""
    units, at_once = _waves(spec, m, n, sms)
    return isinstance(spec.schedule, CutRemainder | SplitK) and units > at_once


def _waves(spec: KernelSpec, m: int, n: int, sms: int) -> tuple[int, int]:
    """Tiles, or clusters of them, and how many of those are there at once."""
    units = -(-m // (spec.tile.m * spec.cluster.m)) * -(-n // (spec.tile.n * spec.cluster.n))
    return units, max(1, sms * spec.ctas_per_sm // spec.cluster.size)


# ------------------------------------------------------------------------------------------------ what is drawn


def drawn(sms: int, seed: int = 7) -> list[Launch]:
    """Both halves, mixed."""
    generator = random.Random(seed)
    found = [_named(spec, sms, generator) for spec in dealt(generator)]
    found += [_asked(index, generator) for index in range(COUNT - len(found))]
    generator.shuffle(found)
    return found


def dealt(generator: random.Random) -> list[KernelSpec]:
    """Every kernel as it is and early, then one after another of the form that has had fewest."""
    plain = list(shipped().values())
    early = list(map(catalog.launched_early, plain))
    found = [*plain, *early]
    of_form: dict[str, list[KernelSpec]] = {}
    for spec in found:
        for form in forms(spec):
            of_form.setdefault(form, []).append(spec)
    had = Counter(form for spec in found for form in forms(spec))
    while len(found) < NAMED:
        found.append(generator.choice(of_form[min(had, key=lambda form: had[form])]))
        had.update(forms(found[-1]))
    return found


def _named(spec: KernelSpec, sms: int, generator: random.Random) -> Launch:
    """Extents that the kernel does its part in, behind full waves as often as not where that is another thing."""
    has_two = isinstance(spec.schedule, CutRemainder | SplitK)
    full = has_two and generator.random() < 0.5
    for _ in range(TRIES):
        n = _extent(COLUMNS, generator) if _stores_any_row(spec) else _columns(generator)
        m, k = _extent(ROWS, generator), _extent(LENGTH, generator, LEAST_LENGTH)
        odd = n % STORED_BY_TMA != 0
        if odd != _stores_any_row(spec) or behind_full_waves(spec, m, n, sms) != full:
            continue
        if does_its_part(spec, m, n, k, sms):
            name = spec.name.removesuffix("_pdl")
            return Launch("fp8" in spec.name, m, n, k, name, spec.programmatic_launch)
    raise ValueError(
        f"{spec.name}: no problem of up to {ROWS}x{COLUMNS}x{LENGTH} was found in {TRIES} tries that its schedule is "
        f"for on {sms} SMs; let `stress_plan` draw larger ones"
    )


def _asked(index: int, generator: random.Random) -> Launch:
    """A problem for the operator; one in eight has rows that TMA cannot store."""
    n = _extent(COLUMNS, generator) if index % 8 == 0 else _columns(generator)
    return Launch(generator.random() < 0.5, _extent(ROWS, generator), n, _extent(LENGTH, generator))


def _columns(generator: random.Random) -> int:
    return STORED_BY_TMA * _extent(COLUMNS // STORED_BY_TMA, generator)


def _extent(limit: int, generator: random.Random, least: int = 1) -> int:
    """Log-uniform."""
    return round(math.exp(generator.uniform(math.log(least), math.log(limit))))


# ------------------------------------------------------------------------------------------------ what it comes to


@dataclass(frozen=True)
class Counts:
    """How often each kernel is launched, as it is, early, and by the operator's choice; and each form of the named."""

    named: Mapping[str, int]
    early: Mapping[str, int]
    by_operator: Mapping[str, int]
    forms: Mapping[str, int]

    @property
    def missing(self) -> list[str]:
        """Kernels that are not launched both as they are and early."""
        return [name for name in shipped() if not (self.named.get(name) and self.early.get(name))]

    @property
    def rare(self) -> dict[str, int]:
        """Forms that get too few launches."""
        every = (*shipped().values(), *map(catalog.launched_early, shipped().values()))
        wanted = dict.fromkeys((*(form for spec in every for form in forms(spec)), *BEHIND))
        return {form: self.forms.get(form, 0) for form in wanted if self.forms.get(form, 0) < LEAST}


def counts(launches: Iterable[Launch], sms: int, card: str | None) -> Counts:
    """Of launches on such a GPU."""
    named, early, by_operator, of_form = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for each in launches:
        if each.kernel is None:
            by_operator[each.taken(sms, card).name] += 1
        else:
            (early if each.early else named)[each.kernel] += 1
            spec = each.taken(sms, card)
            of_form.update(forms(spec))
            if behind_full_waves(spec, each.m, each.n, sms):
                of_form[f"{_schedule(spec)}, behind full waves"] += 1
    return Counts(named, early, by_operator, of_form)
