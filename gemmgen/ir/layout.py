"""LayoutSpec and LayoutPlan: a matrix read in one memory order and written in another, as spec and as decided numbers.

The second kind of kernel beside pipelines. Knows operands and architectures; nothing is multiplied here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gemmgen.ir.dtype import Arch, DType
from gemmgen.ir.node import Name, Node
from gemmgen.ir.operand import Operand, split_axis
from gemmgen.ir.plan import Param, Plan, TensorMapPlan
from gemmgen.ir.reserved import KERNELS, check_free
from gemmgen.ir.spec import KernelSpec

SCALES_PER_WORD = 4
PACKED = (DType.F32, DType.UE8M0)
"""Scales that words are made of."""


class LayoutSpec(Node):
    """``destination`` is ``source`` in another memory order, tile by tile through shared memory.

    Both cover the axes m and k, where m stands for the rows of either factor. Elements of one type are transposed: the
    contiguous axis changes, and 4-bit elements are paired anew along the new one. fp32 scales become words of four
    UE8M0 bytes along k, one row for each m; a source with ``m/128`` repeats its rows. Bytes of scales become words too.
    ``fill_pads`` also writes zeros behind each line of the destination, up to a whole chunk of 16 bytes.
    """

    kind: Literal["layout"] = "layout"
    name: Name
    arch: Arch
    source: Operand
    destination: Operand
    fill_pads: bool = False
    warps: Annotated[int, Field(ge=1, le=8)] = 8

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        return check_free("spec", name, KERNELS)

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """In the order of the kernel's parameters."""
        return self.source, self.destination

    @property
    def output(self) -> Operand:
        """The operand that is written."""
        return self.destination

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """All that is written."""
        return (self.output,)

    @property
    def packs(self) -> bool:
        """Whether scales are packed four to a word."""
        return self.source.dtype != self.destination.dtype

    def operand(self, name: str) -> Operand:
        """The operand of that name; raises ``ValueError`` that lists the known ones."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        known = ", ".join(repr(each.name) for each in self.operands)
        raise ValueError(f"spec {self.name!r} has no operand {name!r}; it defines {known}")

    @model_validator(mode="after")
    def _check(self) -> LayoutSpec:
        _axes_fit(self)
        _types_fit(self)
        if 8 % self.warps:
            raise ValueError(f"spec {self.name!r}: {self.warps} warps do not share 8 strips evenly; use 1, 2, 4 or 8")
        return self


def _axes_fit(spec: LayoutSpec) -> None:
    for what, operand in (("source", spec.source), ("destination", spec.destination)):
        if sorted(operand.axes) != ["k", "m"]:
            raise ValueError(f"{what} {operand.name!r} has box {operand.box}; a layout kernel's matrices are m by k")
    if spec.source.name == spec.destination.name:
        raise ValueError(f"spec {spec.name!r}: source and destination are both named {spec.source.name!r}; rename one")
    if spec.source.axes != spec.destination.axes:
        raise ValueError(
            f"source has box {spec.source.box}, destination {spec.destination.box}; write both in the same order and "
            "say with major which axis is contiguous"
        )


def _types_fit(spec: LayoutSpec) -> None:
    source, destination = spec.source, spec.destination
    if not spec.packs:
        if source.box != destination.box or any(split_axis(axis)[1] != 1 for axis in source.box):
            raise ValueError(f"source has box {source.box}, destination {destination.box}; a transpose needs m by k")
        if source.inner == destination.inner:
            raise ValueError(f"source and destination are both contiguous along {source.inner}; nothing would change")
        return
    if source.dtype not in PACKED or destination.dtype != DType.UE8M0X4:
        raise ValueError(f"no kernel makes {destination.dtype} of {source.dtype}; f32 or ue8m0 scales become ue8m0x4")
    wanted = {"m": 1, "k": SCALES_PER_WORD}
    if dict(map(split_axis, destination.box)) != wanted or dict(map(split_axis, source.box))["k"] != 1:
        raise ValueError(
            f"source has box {source.box}, destination {destination.box}; four scales along k make a word: "
            "source k, destination k/4 and m"
        )
    if source.dtype != DType.F32 and source.box[0] != "m":
        raise ValueError(
            f"source has box {source.box}; rows of {source.dtype} are not repeated, so pass one for each m"
        )
    if source.inner != "k" or destination.inner != "m":
        raise ValueError(
            f"source is contiguous along {source.inner}, destination along {destination.inner}; words are packed from "
            "scales contiguous along k and written contiguous along m"
        )


class LayoutPlan(Node):
    """A layout spec with every number decided.

    ``tile_m`` by ``tile_k`` elements of the source are one CTA's. A thread takes a strip of ``lines`` lines of 16 bytes
    and makes words of ``elements`` elements along the destination's contiguous axis; the tile waits in shared memory as
    ``tile_lines`` lines of 128 bytes.
    """

    kind: Literal["layout"] = "layout"
    name: Name
    arch: Arch
    spec_digest: str
    move: Literal["transpose", "pack", "pack_bytes"]
    bits: Literal[4, 8, 16, 32]
    threads: int
    shared_bytes: int
    tile_m: int
    tile_k: int
    tile_lines: int
    lines: int
    row_repeat: int = 1
    """Rows of the destination that one row of the source is read for."""
    fill_pads: bool = False
    source: Operand
    destination: Operand
    params: tuple[Param, ...]

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """In the order of the parameters."""
        return self.source, self.destination

    @property
    def output(self) -> str:
        """The name of the operand that is written."""
        return self.destination.name

    @property
    def tensor_maps(self) -> tuple[TensorMapPlan, ...]:
        """None: these kernels read and write through pointers."""
        return ()

    @property
    def programmatic_launch(self) -> bool:
        """Never: they read what the kernel ahead of them in the stream has written."""
        return False

    def operand(self, name: str) -> Operand:
        """The operand of that name."""
        return next(operand for operand in self.operands if operand.name == name)


AnySpec = KernelSpec | LayoutSpec
AnyPlan = Plan | LayoutPlan
"""Either kind of kernel; ``isinstance`` tells them apart."""
