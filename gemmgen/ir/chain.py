"""Whether the steps of an epilogue and the operands that they name fit together, whatever product is ahead of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmgen.ir.dtype import DType
from gemmgen.ir.operand import Operand, split_axis
from gemmgen.ir.steps import Apply, Bias, Cast, Gate, Keep, Quantise, Reduce, Residual, Scale, Step, Store

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
ELEMENTS = (DType.F32, DType.BF16, DType.F16, DType.E4M3, DType.E5M2)
"""What the epilogue reads operands in, and rounds its result to."""


@dataclass(frozen=True)
class Chain:
    """Steps and all operands that they may name.

    Sentences call it ``whole``, and say that its steps stand in ``field``.
    """

    whole: str
    field: str
    steps: tuple[Step, ...]
    operands: Mapping[str, Operand]

    def where(self, index: int) -> str:
        """How a sentence about a step begins."""
        return f"{self.whole}, {self.field}[{index}]"

    @property
    def last(self) -> Store | Quantise:
        """The step that stores; raises ``ValueError`` where the chain ends with another."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, Store | Quantise):
            raise ValueError(f"{self.whole}: the epilogue must end with a store; add Store(to=...) or Quantise")
        return last

    def check(self) -> None:
        """Raises ``ValueError`` for a chain that no kernel could run. Operands that steps name are there."""
        self._types_follow()
        self._outputs_are_apart()
        self._heads_are_stored()

    def _types_follow(self) -> None:
        stored, columns = None, "n"
        for index, step in enumerate(self.steps):
            where = self.where(index)
            if stored is not None and not isinstance(step, Store):
                raise ValueError(f"{where}: {step.kind} comes after a cast; only a store may follow it")
            if isinstance(step, Store | Quantise) and index != len(self.steps) - 1:
                raise ValueError(
                    f"{where}: a store must be the last step; Keep(to=...) before the cast writes another output"
                )
            if isinstance(step, Cast):
                stored = step.to
            if isinstance(step, Gate):
                self._gate_fits(step, where, columns)
                columns = "n/2"
            self._operands_fit(step, where, columns)
        store = self.last
        if isinstance(store, Quantise):
            return
        output = self.operands[store.to]
        if (stored or output.dtype) != output.dtype:
            raise ValueError(f"the epilogue casts to {stored} but operand {store.to!r} holds {output.dtype}")
        if stored is None and output.dtype != "f32":
            cast = f"Cast(to=DType.{output.dtype.name})"
            raise ValueError(f"operand {store.to!r} holds {output.dtype}; add {cast} before the store")

    def _outputs_are_apart(self) -> None:
        written: set[str] = set()
        for index, step in enumerate(self.steps):
            for name in step.outputs:
                if name in written:
                    raise ValueError(f"{self.where(index)}: {name!r} is written twice; add an operand")
                written.add(name)
        for index, step in enumerate(self.steps):
            for name in step.reads:
                if name in written:
                    raise ValueError(
                        f"{self.where(index)}: {step.kind} reads {name!r}, which the chain writes; add "
                        "an operand to read (a call may pass the stored output for it, too)"
                    )

    def _heads_are_stored(self) -> None:
        last = self.steps[-1]
        for operand in self.operands.values():
            if operand.heads is not None and not (isinstance(last, Store) and last.to == operand.name):
                raise ValueError(
                    f"{self.whole}: operand {operand.name!r} has heads, but only what Store writes moves; remove them"
                )

    def _gate_fits(self, gate: Gate, where: str, columns: str) -> None:
        if columns != "n":
            raise ValueError(f"{where}: a second gate; one a chain joins the columns of a product")
        before = self.steps[: self.steps.index(gate)]
        if columned := [step.to for step in before if isinstance(step, Reduce) and step.along == "m"]:
            raise ValueError(
                f"{where}: a gate behind a reduction along m to {columned[0]!r}; reduce what the gate leaves"
            )

    def _operands_fit(self, step: Step, where: str, columns: str) -> None:
        boxes = _boxes(columns)
        self._reads_fit(step, where)
        if isinstance(step, Cast) and step.to not in ELEMENTS:
            raise ValueError(f"{where}: {step.kind} casts to {step.to}; an epilogue knows {', '.join(ELEMENTS)}")
        if isinstance(step, Scale | Bias):
            operand = self.operands[step.operands[0]]
            allowed = boxes if isinstance(step, Scale) else boxes[1:3]
            if operand.plane not in allowed:
                raise ValueError(
                    f"{where}: {step.kind} by {operand.name!r} with box {operand.box}; allowed are {allowed}"
                )
        if isinstance(step, Apply | Gate):
            for name in step.operands:
                if self.operands[name].plane not in boxes:
                    box = self.operands[name].box
                    raise ValueError(f"{where}: {step.kind} reads {name!r} with box {box}; allowed are {boxes}")
        if isinstance(step, Residual):
            if self.operands[step.matrix].plane != boxes[3]:
                raise ValueError(f"{where}: residual {step.matrix!r} must have box {boxes[3]}")
            if step.beta is not None and self.operands[step.beta].box:
                raise ValueError(f"{where}: beta {step.beta!r} must be a scalar, an operand with an empty box")
        if isinstance(step, Reduce):
            _reduction_fits(self.operands[step.to], step, where, columns)
        if isinstance(step, Quantise):
            self._quantising_fits(step, where, columns)
        if isinstance(step, Keep):
            _keeping_fits(self.operands[step.to], where, columns)
        if isinstance(step, Store) and step.accumulate and (held := self.operands[step.to].dtype) != DType.F32:
            raise ValueError(f"{where}: {step.to!r} holds {held}, and memory adds in fp32 here; use {INSTEAD}")
        if isinstance(step, Store | Quantise):
            if self.operands[step.to].plane != boxes[3]:
                raise ValueError(f"{where}: {step.kind} to {step.to!r} needs box {boxes[3]}")
            _rows_are_contiguous(self.operands[step.to], where, "store")

    def _reads_fit(self, step: Step, where: str) -> None:
        for operand in (self.operands[name] for name in step.reads):
            reads = f"{where}: {step.kind} reads {operand.name!r}"
            if operand.dtype not in ELEMENTS:
                raise ValueError(f"{reads}, which holds {operand.dtype}; an epilogue knows {', '.join(ELEMENTS)}")
            if operand.is_scalar and operand.dtype != DType.F32:
                raise ValueError(
                    f"{reads}, a number of the host in {operand.dtype}; those are passed as f32, so set "
                    "dtype=DType.F32, or on_device=True"
                )
            if operand.ragged:
                raise ValueError(f"{reads}, which is ragged; that is for scales of groups of k, so remove it")
            _rows_are_contiguous(operand, where, "read")

    def _quantising_fits(self, step: Quantise, where: str, columns: str) -> None:
        data, scales = self.operands[step.to], self.operands[step.scales]
        block = QUANTISED.get((data.dtype, scales.dtype))
        if block is None:
            known = ", ".join(f"{values} with {scale}" for values, scale in QUANTISED)
            raise ValueError(
                f"{where}: no rule quantises to {data.dtype} with scales in {scales.dtype}; known are {known}"
            )
        axis = f"n/{block * scales.dtype.scales * split_axis(columns)[1]}"
        if scales.plane != ("m", axis):
            raise ValueError(
                f"{where}: scales {scales.name!r} have box {scales.box}; {scales.dtype} scales of {data.dtype} are one "
                f"per {block} columns{' that a gate leaves' if columns != 'n' else ''}, so write ('m', {axis!r})"
            )
        if scales.dtype.scales > 1 and scales.inner != "m":
            raise ValueError(
                f"{where}: words of scales {scales.name!r} lie along m, as products read them; set major='m'"
            )
        if scales.dtype.scales == 1 and scales.dtype != "f32" and scales.inner == "m":
            raise ValueError(f"{where}: bytes of scales {scales.name!r} lie along n; leave major out")
        wide = scales.dtype in ("ue4m3", "ue4m3x4")
        if (step.tensor_scale is not None) != wide:
            raise ValueError(
                f"{where}: tensor_scale is {step.tensor_scale!r}; ue4m3 scales need one and others have none"
            )
        if step.tensor_scale is not None and self.operands[step.tensor_scale].box:
            raise ValueError(
                f"{where}: tensor_scale {step.tensor_scale!r} must be a scalar, an operand with an empty box"
            )


INSTEAD = "a Residual of a matrix, for which a call may pass the output"
"""Where memory cannot add."""


def _boxes(columns: str) -> tuple[tuple[str, ...], ...]:
    """What an epilogue operand may cover where the chain has these columns: a number, a row, a column, a matrix."""
    return ((), ("m",), (columns,), ("m", columns))


def _rows_are_contiguous(operand: Operand, where: str, does: str) -> None:
    """Of what is a matrix: lanes have pairs of columns of a row."""
    if len(operand.plane) == 2 and operand.inner == "m":
        raise ValueError(f"{where}: {operand.name!r} is m-contiguous; epilogues {does} rows, so leave major out")


def _keeping_fits(operand: Operand, where: str, columns: str) -> None:
    if operand.plane != ("m", columns) or operand.inner != columns:
        raise ValueError(f"{where}: keep to {operand.name!r} needs box {('m', columns)} with n contiguous")
    if operand.dtype not in ELEMENTS:
        raise ValueError(f"{where}: {operand.name!r} holds {operand.dtype}; keep rounds to {', '.join(ELEMENTS)}")


def _reduction_fits(to: Operand, step: Reduce, where: str, columns: str) -> None:
    box = step.box(columns)
    if to.plane != box:
        raise ValueError(f"{where}: reduce along {step.along} to {to.name!r} with box {to.box}; it needs {box}")
    if to.is_scalar:
        raise ValueError(f"{where}: reduce to {to.name!r}, which is passed by value; set on_device=True")
    if to.dtype != DType.F32:
        raise ValueError(f"{where}: reduce to {to.name!r}, which holds {to.dtype}; reductions are f32")
