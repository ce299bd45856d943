"""Rings and roles: who fills which circular buffer, who drains it, and with which body."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gemmgen.ir.node import Name, Node
from gemmgen.ir.reserved import RINGS, ROLES, check_free


class Ring(Node):
    """A circular buffer between the role that fills it and the role that drains it.

    ``slots=None`` asks for as many as fit. ``turns`` says when a slot is handed on: every K block (or every
    ``every`` of them), every output tile, every store of a part of one (a ``store`` ring is drained by bulk groups of
    the copy engine, not by barriers), or every launch that is taken over (every role drains a ``launch`` ring). A ring
    in tensor memory holds no operand but the accumulators of a tile, or a K block of A that a prologue has cast.
    """

    name: Name
    holds: tuple[Name, ...] = ()
    slots: Annotated[int, Field(ge=1, le=32)] | None = None
    space: Literal["smem", "tmem"] = "smem"
    turns: Literal["k", "tile", "store", "launch"] = "k"
    every: Annotated[int, Field(ge=1, le=64)] = 1

    @property
    def carries_data(self) -> bool:
        """Whether slots hold operands or accumulators; a ``launch`` ring carries the next tile to every role."""
        return self.turns != "launch"

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        return check_free("ring", name, RINGS)

    @model_validator(mode="after")
    def _holds_something(self) -> Ring:
        if self.space == "tmem" and (self.holds or self.turns not in ("k", "tile")):
            raise ValueError(
                f"ring {self.name!r} is in tensor memory: it holds accumulators and turns every tile, or A as it was "
                "cast and turns every K block; no operand comes there by itself"
            )
        if self.turns == "launch" and (self.holds or self.space != "smem"):
            raise ValueError(f"ring {self.name!r} turns with launches: it is in shared memory and holds no operand")
        if twice := [name for name in self.holds if self.holds.count(name) > 1]:
            raise ValueError(f"ring {self.name!r} holds {twice[0]!r} twice; name it once")
        if self.space == "smem" and self.turns != "launch" and not self.holds:
            raise ValueError(f"ring {self.name!r} holds no operand; name at least one")
        return self


class BlockScale(Node):
    """Scaling between K blocks: partial sums times the scales of A's rows and B's columns, added in fp32."""

    a: Name
    b: Name


Rings = Annotated[tuple[Name, ...], Field(min_length=1)]


READ_ONCE_BYTES = 240 << 20
"""Bytes of an operand that L2 still drops first: ``drop_first`` in gemmgen/cuda/gemmgen/in_turn.cuh, which says why."""


class TmaLoad(Node):
    """Producer: one thread copies boxes by TMA; lanes copy what TMA cannot (scales with an odd pitch).

    L2 may drop lines of operands in ``evict_first`` before others, unless that is more than ``READ_ONCE_BYTES``:
    they are read once, like weights for few rows.

    With ``part_rows`` the last tiles of A come in boxes of so many rows, and those past the end stay away: the copy
    engine takes longer to fill a row with zeros than to copy one. What is in their place meets nothing that is kept.

    L2 is asked for a tile of what is in ``to_l2``, beside its last K blocks: an output that memory adds to, for which
    stores would else wait.
    """

    kind: Literal["tma_load"] = "tma_load"
    fills: Rings
    evict_first: tuple[Name, ...] = ()
    part_rows: Annotated[int, Field(ge=8, le=128, multiple_of=8)] | None = None
    to_l2: tuple[Name, ...] = ()

    @property
    def drains(self) -> tuple[str, ...]:
        return ()


class Wgmma(Node):
    """Consumer: warpgroups multiply out of shared memory into registers, then run the epilogue.

    ``width`` is the n of the instruction (the whole tile unless given); ``unroll`` copies of the K loop's body let the
    compiler overlap what is around products; where A is cast on the way, 2 give it a second set of registers, so that a
    block is read while the one before is multiplied. ``promote`` sums K blocks in fp32 after scaling; without it the
    tensor core accumulates. Scales in ``reads`` come by no ring: warps read them from memory ahead of the products, a K
    block a lane. ``overlap_epilogue`` begins the next tile before the epilogue of the present one: its first products
    go to the registers in which products wait for their scales, so it needs ``promote``. Of two products whose epilogue
    reads nothing, each a turn of staging buffers, the first is staged beside the last K block of the other.

    ``whole_rounds`` copies the body once for every slot of the ring, where addresses of the slot are constants: what is
    left between the products of a block and the next is sums alone. It needs ``promote``, and no ``unroll``.

    ``partials`` are sets of registers in which products wait for their scales. With 2 of them a product, which is of
    ``width`` columns and 64 rows, runs while what the one before left is scaled: within a K block, and with
    ``whole_rounds`` within a round of the ring, at whose end nothing is in flight. A K block then has an even number of
    products, so that which set one has is the same in every block. It needs ``promote``.

    ``share_k`` gives all warpgroups the same rows: each multiplies its part of every slot, and the first adds up what
    they have of a tile and stores. That is for few tiles, on which warpgroups would wait for their own products.

    ``swap_ab`` puts n on the product's 64 rows; ``width`` is then of the tile's m. That is for few rows, or for as many
    as fill other tiles badly. What a warpgroup makes is staged at once, or by ``staged_rows`` of the output, which
    leaves more of shared memory to slots.
    """

    kind: Literal["wgmma"] = "wgmma"
    drains: Rings
    a: Name = "a"
    b: Name = "b"
    promote: BlockScale | None = None
    width: Annotated[int, Field(ge=8, le=256, multiple_of=8)] | None = None
    unroll: Annotated[int, Field(ge=1, le=16)] = 1
    whole_rounds: bool = False
    partials: Literal[1, 2] = 1
    reads: tuple[Name, ...] = ()
    overlap_epilogue: bool = False
    share_k: bool = False
    swap_ab: bool = False
    staged_rows: Annotated[int, Field(ge=8, multiple_of=8)] | None = None

    @model_validator(mode="after")
    def _rows_are_staged_of_swapped_products(self) -> Wgmma:
        if self.staged_rows is not None and not self.swap_ab:
            raise ValueError(f"staged_rows={self.staged_rows}: warps stage 16 rows of other products; leave it out")
        return self

    @model_validator(mode="after")
    def _partial_sums_take_turns(self) -> Wgmma:
        where = f"partials={self.partials}"
        if self.partials == 1:
            return self
        if self.promote is None:
            raise ValueError(f"{where}: without promote the tensor core sums, and no product waits; leave it out")
        if self.overlap_epilogue:
            raise ValueError(
                f"{where} and overlap_epilogue: products that wait for an epilogue have one set of registers; leave "
                "either out"
            )
        if self.swap_ab:
            raise ValueError(f"{where} and swap_ab: swapped products wait one at a time; leave either out")
        return self

    @property
    def fills(self) -> tuple[str, ...]:
        return ()

    @property
    def operands(self) -> tuple[str, ...]:
        """What it reads from the rings it drains."""
        scales = (self.promote.a, self.promote.b) if self.promote else ()
        return (self.a, self.b, *(name for name in scales if name not in self.reads))


class TransposeScales(Node):
    """Works on slots of scales in place, between the role that fills them and the one that multiplies by them."""

    kind: Literal["transpose_scales"] = "transpose_scales"
    hands_on: Rings

    @property
    def fills(self) -> tuple[str, ...]:
        return ()

    @property
    def drains(self) -> tuple[str, ...]:
        return ()


class Tcgen05(Node):
    """One thread issues products out of shared memory into accumulators in tensor memory.

    With ``scales`` the tensor core applies block scales itself. ``ctas=2`` multiplies for a pair of CTAs along m: each
    holds its own rows of A and half of B; a swapped pair lies along n and halves A. ``packed`` keeps 4-bit operands
    packed in shared memory, at twice the rate of 8-bit ones; otherwise each takes a byte there. ``swap_ab`` puts n on
    the instruction's 128-row axis.
    """

    kind: Literal["tcgen05"] = "tcgen05"
    drains: Rings
    fills: Rings
    a: Name = "a"
    b: Name = "b"
    scales: BlockScale | None = None
    ctas: Literal[1, 2] = 1
    packed: bool = False
    swap_ab: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """What it reads from the rings it drains."""
        scales = (self.scales.a, self.scales.b) if self.scales else ()
        return (self.a, self.b, *scales)


class MmaSync(Node):
    """Warps copy fragments from shared memory to registers, multiply there, then run the epilogue.

    They stand in a grid: ``warp_rows`` of them share the rows of the product, the others its columns. With ``scales``
    the tensor core applies block scales itself. ``packed`` keeps 4-bit operands packed in shared memory, at twice the
    rate of 8-bit ones; otherwise each takes a byte there. ``swap_ab`` puts n on the product's rows. ``unroll`` copies
    of the K loop's body let the compiler overlap them.
    """

    kind: Literal["mma_sync"] = "mma_sync"
    drains: Rings
    a: Name = "a"
    b: Name = "b"
    scales: BlockScale | None = None
    warp_rows: Annotated[int, Field(ge=1, le=16)] = 4
    packed: bool = False
    swap_ab: bool = False
    unroll: Annotated[int, Field(ge=1, le=16)] = 1

    @property
    def fills(self) -> tuple[str, ...]:
        return ()

    @property
    def operands(self) -> tuple[str, ...]:
        """What it reads from the rings it drains."""
        scales = (self.scales.a, self.scales.b) if self.scales else ()
        return (self.a, self.b, *scales)


class FetchTiles(Node):
    """One thread asks for tiles whose CTAs have not started, for all roles of the CTA or pair."""

    kind: Literal["fetch_tiles"] = "fetch_tiles"
    fills: Rings

    @property
    def drains(self) -> tuple[str, ...]:
        return ()


class TmemCast(Node):
    """Warps run the prologue: each lane reads a row of A and leaves it in tensor memory for the products."""

    kind: Literal["tmem_cast"] = "tmem_cast"
    drains: Rings
    fills: Rings


class TmemStore(Node):
    """Warps drain accumulators from tensor memory, each lane a row, and run the epilogue."""

    kind: Literal["tmem_store"] = "tmem_store"
    drains: Rings

    @property
    def fills(self) -> tuple[str, ...]:
        return ()


Body = Annotated[
    TmaLoad | Wgmma | TransposeScales | Tcgen05 | MmaSync | FetchTiles | TmemCast | TmemStore,
    Field(discriminator="kind"),
]
Multiplier = Wgmma | Tcgen05 | MmaSync
"""Bodies that multiply; every spec has one."""


class Role(Node):
    """A set of warps running one body. ``registers`` is the ``setmaxnreg`` request, none if left out."""

    name: Name
    warps: Annotated[int, Field(ge=1, le=32)]
    body: Body
    registers: Annotated[int, Field(ge=24, le=256, multiple_of=8)] | None = None

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        return check_free("role", name, ROLES)
