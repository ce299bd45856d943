"""Rules of a prologue, and of outputs that have a slice for each split of k; ``KernelSpec`` checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.ir.dtype import DType
from gemmgen.ir.operand import Operand
from gemmgen.ir.roles import Multiplier, Tcgen05, TmemCast
from gemmgen.ir.schedule import SplitK
from gemmgen.ir.steps import Cast, Store, SumOfSquares

if TYPE_CHECKING:
    from gemmgen.ir.spec import KernelSpec


def prologue_fits(spec: KernelSpec) -> None:
    """Each kind of step once, the cast last and to what the other factor is, sums to a vector of f32."""
    _role_is_there(spec)
    kinds = [step.kind for step in spec.prologue]
    for index, step in enumerate(spec.prologue):
        where = f"spec {spec.name!r}, prologue[{index}]"
        if step.kind in kinds[:index]:
            raise ValueError(f"{where}: a second {step.kind}; a prologue has one of a kind")
        if isinstance(step, Cast):
            if index != len(kinds) - 1:
                raise ValueError(f"{where}: a cast must be the last step, right before the product")
            _cast_fits(spec, step, where)
        else:
            _sum_fits(spec, spec.operand(step.to), step, where)


def _role_is_there(spec: KernelSpec) -> None:
    """Where products are issued by one thread, a role of its own reads A; elsewhere the one that multiplies does."""
    roles = [role.name for role in spec.roles if isinstance(role.body, TmemCast)]
    needed = 1 if spec.prologue and isinstance(spec.math.body, Tcgen05) else 0
    if len(roles) != needed:
        raise ValueError(
            f"spec {spec.name!r} has a prologue of {len(spec.prologue)} steps and roles {roles} with body TmemCast; "
            "Tcgen05 needs exactly one for a prologue, and nothing else has any"
        )


def _cast_fits(spec: KernelSpec, step: Cast, where: str) -> None:
    body = spec.math.body
    assert isinstance(body, Multiplier)
    a, b = spec.operand(body.a), spec.operand(body.b)
    if (a.dtype, b.dtype, step.to) != (DType.BF16, DType.F32, DType.F32):
        raise ValueError(
            f"{where}: casts A from {a.dtype} to {step.to} beside B in {b.dtype}; a prologue casts bf16 to f32 for a B "
            "in f32, and the tensor core reads both as tf32"
        )
    if len(body.operands) > 2:
        raise ValueError(f"{where}: A is cast and block-scaled; products of f32 have no block scales, leave them out")
    if body.swap_ab:
        raise ValueError(f"{where}: a prologue works on the rows of the product, which swap_ab gives to B; do not swap")
    if a.inner != "k":
        raise ValueError(f"{where}: A is {a.inner}-contiguous; lanes read pairs along k, so make k contiguous")


def _sum_fits(spec: KernelSpec, to: Operand, step: SumOfSquares, where: str) -> None:
    if not any(isinstance(each, Cast) for each in spec.prologue):
        raise ValueError(f"{where}: nothing reads A's values but the tensor core; add Cast(to=DType.F32) behind it")
    if any(step.to in (*each.outputs, *each.reads) for each in spec.epilogue):
        raise ValueError(f"{where}: {step.kind} to {step.to!r}, which the epilogue reads or writes; add an operand")
    if to.plane != ("m",) or to.dtype != DType.F32:
        needed = ("s", "m") if spec.sliced else ("m",)
        raise ValueError(
            f"{where}: {step.kind} to {to.name!r} with box {to.box} of {to.dtype}; it needs {needed} of f32"
        )


def slices_fit(spec: KernelSpec) -> None:
    """Slices are partial sums: every output has the axis, no other operand does, and nothing is done to them."""
    schedule = spec.schedule
    if isinstance(schedule, SplitK) and schedule.slices and schedule.splits is not None:
        raise ValueError(
            f"spec {spec.name!r}: slices are as many as the outputs have, but splits is {schedule.splits}; "
            "use splits=None"
        )
    for operand in spec.operands:
        if (operand.box[:1] == ("s",)) != (spec.sliced and operand in spec.outputs):
            raise ValueError(
                f"spec {spec.name!r}: operand {operand.name!r} has box {operand.box}; every output of a schedule "
                "SplitK(splits=None, slices=True) has the axis 's' first, and no other operand has it"
            )
    for index, step in enumerate(spec.epilogue if spec.sliced else ()):
        where = f"spec {spec.name!r}, epilogue[{index}]"
        if not isinstance(step, Cast | Store):
            raise ValueError(f"{where}: {step.kind} of partial sums, which only a cast and a store may follow")
        if isinstance(step, Store) and step.through is not None:
            raise ValueError(f"{where}: slices are stored from registers; leave out through={step.through!r}")
