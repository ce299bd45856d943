"""KernelSpec: what an author writes. Validators check that the parts fit together, whatever the architecture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import Field, field_validator, model_validator

from gemmgen.ir.chain import INSTEAD, QUANTISED, Chain
from gemmgen.ir.dtype import Arch
from gemmgen.ir.groups import Groups, RowGroups, groups_fit
from gemmgen.ir.node import Name, Node
from gemmgen.ir.operand import Operand
from gemmgen.ir.prologue import prologue_fits, slices_fit
from gemmgen.ir.reading import ahead_fits, fetched_fit, hints_fit, reads_fit
from gemmgen.ir.reserved import KERNELS, check_free
from gemmgen.ir.roles import FetchTiles, Multiplier, Ring, Role, TmaLoad, TransposeScales
from gemmgen.ir.schedule import Cluster, LaunchControl, Persistent, Schedule, SplitK, Tile
from gemmgen.ir.steps import Gate, PrologueStep, Quantise, Step, Store

_T = TypeVar("_T", Operand, Ring)
LOADED: dict[Arch, tuple[str, ...]] = {
    Arch.SM90: ("boxes", "scales", "strips"),
    Arch.SM100: (),
    Arch.SM120: ("boxes",),
}
"""What functions of the role that loads are called behind its name."""
GATED_COLUMNS = 16
"""Columns that a gate takes at a time: 8 of gate and 8 of up."""


class KernelSpec(Node):
    """A GEMM-shaped pipeline: operands, rings between roles, a prologue and an epilogue chain, a schedule.

    The ``prologue`` works on A's values on their way to the tensor core.
    ``programmatic_launch`` lets the kernel start before the one ahead of it in the stream has ended; it waits
    for that one's memory before it reads or writes any. Operands in ``ahead`` it may read before: weights, which no
    kernel writes that may still run. (Kernels that start early may come several in a row, so looking at the last one
    is not enough.) ``ctas_per_sm`` is how many CTAs one SM should hold. With ``groups`` a launch has several problems.
    """

    name: Name
    arch: Arch
    tile: Tile
    operands: tuple[Operand, ...]
    rings: tuple[Ring, ...]
    roles: tuple[Role, ...]
    epilogue: tuple[Step, ...]
    schedule: Schedule = Persistent()
    cluster: Cluster = Cluster()
    programmatic_launch: bool = False
    ctas_per_sm: Annotated[int, Field(ge=1, le=4)] = 1
    prologue: tuple[PrologueStep, ...] = ()
    ahead: tuple[Name, ...] = ()
    groups: Groups | None = None

    def operand(self, name: str) -> Operand:
        """The operand of that name; raises ``ValueError`` that lists the known ones."""
        return _named(self.operands, name, "operand", self.name)

    def ring(self, name: str) -> Ring:
        """The ring of that name; raises ``ValueError`` that lists the known ones."""
        return _named(self.rings, name, "ring", self.name)

    @property
    def chain(self) -> Chain:
        """The epilogue apart from the product."""
        return Chain(f"spec {self.name!r}", "epilogue", self.epilogue, {each.name: each for each in self.operands})

    @property
    def load(self) -> Role:
        """The role that fills the mainloop's ring."""
        return next(role for role in self.roles if isinstance(role.body, TmaLoad))

    @property
    def math(self) -> Role:
        """The role that multiplies."""
        return next(role for role in self.roles if isinstance(role.body, Multiplier))

    @property
    def output(self) -> Operand:
        """The operand that the epilogue stores to."""
        return self.operand(self.chain.last.to)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Every operand that is written: what the last step of the epilogue stores, then others as chains name them."""
        *steps, last = self.epilogue
        return tuple(self.operand(name) for step in (last, *steps, *self.prologue) for name in step.outputs)

    @property
    def accumulates(self) -> bool:
        """Whether the output is added to what it holds."""
        last = self.chain.last
        return isinstance(last, Store) and last.accumulate

    @property
    def sliced(self) -> bool:
        """Whether outputs have a slice for each split of k."""
        return isinstance(self.schedule, SplitK) and self.schedule.slices

    @property
    def gate(self) -> Gate | None:
        """The step that joins pairs of columns, if there is one."""
        return next((step for step in self.epilogue if isinstance(step, Gate)), None)

    def output_columns(self, columns: int) -> int:
        """How many columns of the output so many columns of the product become."""
        return columns // 2 if self.gate else columns

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        return check_free("spec", name, KERNELS)

    @model_validator(mode="after")
    def _check(self) -> KernelSpec:
        for check in CHECKS:
            check(self)
        return self


def _named(items: Iterable[_T], name: str, what: str, spec: str) -> _T:
    for item in items:
        if item.name == name:
            return item
    known = ", ".join(repr(item.name) for item in items) or "none"
    raise ValueError(f"spec {spec!r} names {what} {name!r}, which it does not define; it defines {known}")


def _names_are_unique(spec: KernelSpec) -> None:
    for what, items in (("operands", spec.operands), ("rings", spec.rings), ("roles", spec.roles)):
        names = [item.name for item in items]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"spec {spec.name!r}: {what} define {name!r} twice; rename one")


def _names_are_apart(spec: KernelSpec) -> None:
    """Rings, roles and the kernel stand side by side in the text, and functions of the role that loads."""
    parts = {f"{spec.load.name}_{part}": f"a function of role {spec.load.name!r}" for part in LOADED[spec.arch]}
    roles = {role.name: f"role {role.name!r}" for role in spec.roles}
    for what, names, others in (
        ("role", tuple(roles), parts),
        ("ring", tuple(ring.name for ring in spec.rings), roles | parts),
        ("spec", (spec.name,), roles | parts),
    ):
        for name in names:
            if name in others:
                raise ValueError(f"spec {spec.name!r}: {what} {name!r} is called as {others[name]}; rename either")


def _roles_are_complete(spec: KernelSpec) -> None:
    kinds: tuple[tuple[Any, str], ...] = (
        (TmaLoad, "TmaLoad"),
        (Multiplier, "Wgmma, Tcgen05 or MmaSync"),
    )
    for body, what in kinds:
        count = sum(isinstance(role.body, body) for role in spec.roles)
        if count != 1:
            raise ValueError(f"spec {spec.name!r} has {count} roles with body {what}; it needs exactly 1")


def _rings_are_joined(spec: KernelSpec) -> None:
    for role in spec.roles:
        handed_on = role.body.hands_on if isinstance(role.body, TransposeScales) else ()
        for name in (*role.body.fills, *role.body.drains, *handed_on):
            spec.ring(name)
    held: dict[str, str] = {}
    for ring in spec.rings:
        for name in ring.holds:
            spec.operand(name)
            if ring.turns == "k" and held.setdefault(name, ring.name) != ring.name:
                raise ValueError(f"rings {held[name]!r} and {ring.name!r} both hold {name!r}; leave it out of either")
        if ring.turns != "store":
            _ring_is_joined(spec, ring)


def _ring_is_joined(spec: KernelSpec, ring: Ring) -> None:
    fillers = [role.name for role in spec.roles if ring.name in role.body.fills]
    drainers = [role.name for role in spec.roles if ring.name in role.body.drains or not ring.carries_data]
    if len(fillers) != 1 or not drainers:
        raise ValueError(
            f"ring {ring.name!r} is filled by {fillers or 'no role'} and drained by {drainers or 'no role'}; "
            "one role fills a ring and at least one drains it"
        )


def _schedule_is_served(spec: KernelSpec) -> None:
    rings = [ring.name for ring in spec.rings if not ring.carries_data]
    fetching = [name for role in spec.roles if isinstance(role.body, FetchTiles) for name in role.body.fills]
    needed = 1 if isinstance(spec.schedule, LaunchControl) else 0
    if len(rings) != needed or fetching != rings:
        raise ValueError(
            f"spec {spec.name!r} has schedule {spec.schedule.kind}, launch rings {rings} and FetchTiles filling "
            f"{fetching}; launch_control needs one ring that turns with launches and a role that fills it, "
            "other schedules neither"
        )


def _multiplier_is_fed(spec: KernelSpec) -> None:
    body = spec.math.body
    assert isinstance(body, Multiplier)
    held = [name for ring in body.drains for name in spec.ring(ring).holds]
    missing = [name for name in body.operands if name not in held]
    if missing:
        raise ValueError(f"role {spec.math.name!r} needs {missing} from the rings it drains, which hold {held}")


def _operands_are_used(spec: KernelSpec) -> None:
    _ = spec.chain.last  # refuses an epilogue without a store, whose output would be called idle
    used = {name for ring in spec.rings for name in ring.holds} | set(getattr(spec.math.body, "reads", ()))
    used |= {spec.groups.layout} if spec.groups else set()
    for step in (*spec.prologue, *spec.epilogue):
        for name in step.operands:
            spec.operand(name)
            used.add(name)
    idle = [operand.name for operand in spec.operands if operand.name not in used]
    if idle:
        raise ValueError(f"spec {spec.name!r}: no ring holds and no step names operand {idle[0]!r}; remove or use it")


def _chain_fits(spec: KernelSpec) -> None:
    spec.chain.check()
    for index, step in enumerate(spec.epilogue):
        where = spec.chain.where(index)
        if isinstance(step, Gate):
            _gate_fits(spec, step, where)
        if isinstance(step, Quantise):
            _blocks_fit(spec, step, where)
        if isinstance(step, Store) and step.accumulate and isinstance(spec.groups, RowGroups):
            raise ValueError(f"{where}: rows that the end of a group cuts off are copied, not added; use {INSTEAD}")
        if isinstance(step, Store | Quantise) and step.through is not None:
            ring = spec.ring(step.through)
            if ring.turns != "store" or ring.holds != (step.to,):
                raise ValueError(
                    f"{where}: ring {ring.name!r} must have turns='store' and hold ({step.to!r},) to stage this store"
                )


def _gate_fits(spec: KernelSpec, gate: Gate, where: str) -> None:
    body = spec.math.body
    if spec.tile.n % GATED_COLUMNS:
        raise ValueError(
            f"{where}: a gate takes {GATED_COLUMNS} columns at a time, half of them gate and half up, but tile.n is "
            f"{spec.tile.n}; use a multiple of {GATED_COLUMNS}"
        )
    assert isinstance(body, Multiplier)
    if body.swap_ab:
        raise ValueError(f"{where}: a gate joins columns, which swap_ab puts on the product's rows; do not swap")
    if gate.layout == "halves" and spec.operand(body.b).inner != "k":
        raise ValueError(
            f"{where}: operand {body.b!r} is n-contiguous; halves of n are brought together row by row, so make k "
            "contiguous, or interleave its columns and set layout='interleaved'"
        )


def _blocks_fit(spec: KernelSpec, step: Quantise, where: str) -> None:
    block = QUANTISED[spec.operand(step.to).dtype, spec.operand(step.scales).dtype]
    width = spec.output_columns(spec.tile.n)
    if width % block:
        columns = "n/2" if spec.gate else "n"
        raise ValueError(f"{where}: a block of {block} columns would cross the edge of a tile with {columns}={width}")


CHECKS = (
    _names_are_unique,
    _roles_are_complete,
    _names_are_apart,
    _rings_are_joined,
    _schedule_is_served,
    reads_fit,
    _multiplier_is_fed,
    ahead_fits,
    hints_fit,
    fetched_fit,
    _operands_are_used,
    _chain_fits,
    slices_fit,
    prologue_fits,
    groups_fit,
)
"""In this order: a later check relies on what an earlier one made sure of."""
