"""KernelSpec: what an author writes. Validators check that the parts fit together, whatever the architecture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator

from gemmgen.ir.dtype import Arch, DType
from gemmgen.ir.groups import Groups, RowGroups, groups_fit
from gemmgen.ir.node import Name, Node
from gemmgen.ir.operand import Operand, split_axis
from gemmgen.ir.prologue import prologue_fits, slices_fit
from gemmgen.ir.reading import ahead_fits, fetched_fit, hints_fit, reads_fit
from gemmgen.ir.roles import FetchTiles, Multiplier, Ring, Role, TmaLoad, TransposeScales
from gemmgen.ir.schedule import Cluster, LaunchControl, Persistent, Schedule, SplitK, Tile
from gemmgen.ir.steps import Apply, Bias, Cast, Gate, Keep, PrologueStep, Quantise, Reduce, Residual, Scale, Step, Store

QUANTISED: dict[tuple[DType, DType], int] = {
    (DType.E4M3, DType.UE8M0): 32,
    (DType.E4M3, DType.UE8M0X4): 32,
    (DType.E4M3, DType.F32): 128,
    (DType.E2M1, DType.UE8M0): 32,
    (DType.E2M1, DType.UE8M0X4): 32,
    (DType.E2M1, DType.UE4M3): 16,
    (DType.E2M1, DType.UE4M3X4): 16,
}
"""Columns that share a scale, by the type of values and of scales: MXFP8, FP8 1x128, MXFP4, NVFP4."""
_T = TypeVar("_T", Operand, Ring)
ELEMENTS = (DType.F32, DType.BF16, DType.F16, DType.E4M3, DType.E5M2)
"""What the epilogue reads operands in, and rounds its result to."""
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
        return self.operand(_store(self).to)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Every operand that is written: what the last step of the epilogue stores, then others as chains name them."""
        *steps, last = self.epilogue
        return tuple(self.operand(name) for step in (last, *steps, *self.prologue) for name in step.outputs)

    @property
    def accumulates(self) -> bool:
        """Whether the output is added to what it holds."""
        last = _store(self)
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


def _store(spec: KernelSpec) -> Store | Quantise:
    last = spec.epilogue[-1] if spec.epilogue else None
    if not isinstance(last, Store | Quantise):
        raise ValueError(f"spec {spec.name!r}: the epilogue must end with a store; add Store(to=...) or Quantise")
    return last


def _names_are_unique(spec: KernelSpec) -> None:
    for what, items in (("operands", spec.operands), ("rings", spec.rings), ("roles", spec.roles)):
        names = [item.name for item in items]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"spec {spec.name!r}: {what} define {name!r} twice; rename one")


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
    for ring in spec.rings:
        for name in ring.holds:
            spec.operand(name)
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
    _store(spec)
    used = {name for ring in spec.rings for name in ring.holds} | set(getattr(spec.math.body, "reads", ()))
    used |= {spec.groups.layout} if spec.groups else set()
    for step in (*spec.prologue, *spec.epilogue):
        for name in step.operands:
            spec.operand(name)
            used.add(name)
    idle = [operand.name for operand in spec.operands if operand.name not in used]
    if idle:
        raise ValueError(f"spec {spec.name!r}: no ring holds and no step names operand {idle[0]!r}; remove or use it")


def _chain_is_typed(spec: KernelSpec) -> None:
    stored, columns = None, "n"
    for index, step in enumerate(spec.epilogue):
        where = f"spec {spec.name!r}, epilogue[{index}]"
        if stored is not None and not isinstance(step, Store):
            raise ValueError(f"{where}: {step.kind} comes after a cast; only a store may follow it")
        if isinstance(step, Store | Quantise) and index != len(spec.epilogue) - 1:
            raise ValueError(
                f"{where}: a store must be the last step; Keep(to=...) before the cast writes another output"
            )
        if isinstance(step, Cast):
            stored = step.to
        if isinstance(step, Gate):
            _gate_fits(spec, step, where, columns)
            columns = "n/2"
        _step_operands_fit(spec, step, where, columns)
    store, output = _store(spec), spec.output
    if isinstance(store, Quantise):
        return
    if (stored or output.dtype) != output.dtype:
        raise ValueError(f"the epilogue casts to {stored} but operand {store.to!r} holds {output.dtype}")
    if stored is None and output.dtype != "f32":
        cast = f"Cast(to=DType.{output.dtype.name})"
        raise ValueError(f"operand {store.to!r} holds {output.dtype}; add {cast} before the store")


def _outputs_are_apart(spec: KernelSpec) -> None:
    written: set[str] = set()
    for index, step in enumerate(spec.epilogue):
        for name in step.outputs:
            if name in written:
                raise ValueError(f"spec {spec.name!r}, epilogue[{index}]: {name!r} is written twice; add an operand")
            written.add(name)
    for index, step in enumerate(spec.epilogue):
        for name in step.reads:
            if name in written:
                raise ValueError(
                    f"spec {spec.name!r}, epilogue[{index}]: {step.kind} reads {name!r}, which the chain writes; add "
                    "an operand to read (a call may pass the stored output for it, too)"
                )


def _heads_are_stored(spec: KernelSpec) -> None:
    last = spec.epilogue[-1]
    for operand in spec.operands:
        if operand.heads is not None and not (isinstance(last, Store) and last.to == operand.name):
            raise ValueError(
                f"spec {spec.name!r}: operand {operand.name!r} has heads, but only what Store writes moves; remove them"
            )


def epilogue_boxes(columns: str) -> tuple[tuple[str, ...], ...]:
    """What an epilogue operand may cover where the chain has these columns: a number, a row, a column, a matrix."""
    return ((), ("m",), (columns,), ("m", columns))


def _gate_fits(spec: KernelSpec, gate: Gate, where: str, columns: str) -> None:
    body = spec.math.body
    if columns != "n":
        raise ValueError(f"{where}: a second gate; one a chain joins the columns of a product")
    before = spec.epilogue[: spec.epilogue.index(gate)]
    if columned := [step.to for step in before if isinstance(step, Reduce) and step.along == "m"]:
        raise ValueError(f"{where}: a gate behind a reduction along m to {columned[0]!r}; reduce what the gate leaves")
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


def _step_operands_fit(spec: KernelSpec, step: Step, where: str, columns: str) -> None:
    boxes = epilogue_boxes(columns)
    types = [("casts to", step.to)] if isinstance(step, Cast) else []
    types += [(f"reads {name!r}, which holds", spec.operand(name).dtype) for name in step.reads]
    for does, dtype in types:
        if dtype not in ELEMENTS:
            raise ValueError(f"{where}: {step.kind} {does} {dtype}; an epilogue knows {', '.join(ELEMENTS)}")
    if isinstance(step, Scale | Bias):
        operand = spec.operand(step.operands[0])
        allowed = boxes if isinstance(step, Scale) else boxes[1:3]
        if operand.plane not in allowed:
            raise ValueError(f"{where}: {step.kind} by {operand.name!r} with box {operand.box}; allowed are {allowed}")
    if isinstance(step, Apply | Gate):
        for name in step.operands:
            if spec.operand(name).plane not in boxes:
                box = spec.operand(name).box
                raise ValueError(f"{where}: {step.kind} reads {name!r} with box {box}; allowed are {boxes}")
    if isinstance(step, Residual):
        if spec.operand(step.matrix).plane != boxes[3]:
            raise ValueError(f"{where}: residual {step.matrix!r} must have box {boxes[3]}")
        if step.beta is not None and spec.operand(step.beta).box:
            raise ValueError(f"{where}: beta {step.beta!r} must be a scalar, an operand with an empty box")
    if isinstance(step, Reduce):
        _reduction_fits(spec.operand(step.to), step, where, columns)
    if isinstance(step, Quantise):
        _quantising_fits(spec, step, where, columns)
    if isinstance(step, Keep):
        _keeping_fits(spec, step, where, columns)
    if isinstance(step, Store) and step.accumulate:
        _accumulating_fits(spec, step, where)
    if isinstance(step, Store | Quantise):
        if spec.operand(step.to).plane != boxes[3]:
            raise ValueError(f"{where}: {step.kind} to {step.to!r} needs box {boxes[3]}")
        if step.through is not None:
            ring = spec.ring(step.through)
            if ring.turns != "store" or ring.holds != (step.to,):
                raise ValueError(
                    f"{where}: ring {ring.name!r} must have turns='store' and hold ({step.to!r},) to stage this store"
                )


def _accumulating_fits(spec: KernelSpec, step: Store, where: str) -> None:
    instead = "a Residual of a matrix, for which a call may pass the output"
    if spec.operand(step.to).dtype != DType.F32:
        raise ValueError(
            f"{where}: {step.to!r} holds {spec.operand(step.to).dtype}, and memory adds in fp32 here; use {instead}"
        )
    if isinstance(spec.groups, RowGroups):
        raise ValueError(f"{where}: rows that the end of a group cuts off are copied, not added; use {instead}")


def _keeping_fits(spec: KernelSpec, step: Keep, where: str, columns: str) -> None:
    operand = spec.operand(step.to)
    if operand.plane != ("m", columns) or operand.inner != columns:
        raise ValueError(f"{where}: keep to {step.to!r} needs box {('m', columns)} with n contiguous")
    if operand.dtype not in ELEMENTS:
        raise ValueError(f"{where}: {step.to!r} holds {operand.dtype}; keep rounds to {', '.join(ELEMENTS)}")


def _reduction_fits(to: Operand, step: Reduce, where: str, columns: str) -> None:
    box = step.box(columns)
    if to.plane != box:
        raise ValueError(f"{where}: reduce along {step.along} to {to.name!r} with box {to.box}; it needs {box}")
    if to.is_scalar:
        raise ValueError(f"{where}: reduce to {to.name!r}, which is passed by value; set on_device=True")
    if to.dtype != DType.F32:
        raise ValueError(f"{where}: reduce to {to.name!r}, which holds {to.dtype}; reductions are f32")


def _quantising_fits(spec: KernelSpec, step: Quantise, where: str, columns: str) -> None:
    data, scales = spec.operand(step.to), spec.operand(step.scales)
    block = QUANTISED.get((data.dtype, scales.dtype))
    if block is None:
        known = ", ".join(f"{values} with {scale}" for values, scale in QUANTISED)
        raise ValueError(f"{where}: no rule quantises to {data.dtype} with scales in {scales.dtype}; known are {known}")
    axis = f"n/{block * scales.dtype.scales * split_axis(columns)[1]}"
    if scales.plane != ("m", axis):
        raise ValueError(
            f"{where}: scales {scales.name!r} have box {scales.box}; {scales.dtype} scales of {data.dtype} are one per "
            f"{block} columns{' that a gate leaves' if spec.gate else ''}, so write ('m', {axis!r})"
        )
    if scales.dtype.scales > 1 and scales.inner != "m":
        raise ValueError(f"{where}: words of scales {scales.name!r} lie along m, as products read them; set major='m'")
    if scales.dtype.scales == 1 and scales.dtype != "f32" and scales.inner == "m":
        raise ValueError(f"{where}: bytes of scales {scales.name!r} lie along n; leave major out")
    width = spec.output_columns(spec.tile.n)
    if width % block:
        raise ValueError(f"{where}: a block of {block} columns would cross the edge of a tile with {columns}={width}")
    wide = scales.dtype in ("ue4m3", "ue4m3x4")
    if (step.tensor_scale is not None) != wide:
        raise ValueError(f"{where}: tensor_scale is {step.tensor_scale!r}; ue4m3 scales need one and others have none")
    if step.tensor_scale is not None and spec.operand(step.tensor_scale).box:
        raise ValueError(f"{where}: tensor_scale {step.tensor_scale!r} must be a scalar, an operand with an empty box")


CHECKS = (
    _names_are_unique,
    _roles_are_complete,
    _rings_are_joined,
    _schedule_is_served,
    reads_fit,
    _multiplier_is_fed,
    ahead_fits,
    hints_fit,
    fetched_fit,
    _operands_are_used,
    _chain_is_typed,
    _outputs_are_apart,
    _heads_are_stored,
    slices_fit,
    prologue_fits,
    groups_fit,
)
"""In this order: a later check relies on what an earlier one made sure of."""
