"""What a plan says of products: the instruction of each architecture, and how a tile is cut into it."""

from __future__ import annotations

from typing import Literal

from gemmgen.ir.dtype import DType
from gemmgen.ir.node import Name, Node


class MmaPlan(Node):
    """The matrix instruction and how a warpgroup's share of the tile is cut into units of one instruction shape.

    ``a`` and ``b`` are the instruction's operands: a's rows are the product's rows, b's its columns. ``row_axis`` says
    which of m and n the rows are.
    """

    kind: Literal["wgmma"] = "wgmma"
    instruction: str
    row_axis: Literal["m", "n"] = "m"
    width: int
    step_k: int
    steps: int
    groups: int
    row_blocks: int
    col_blocks: int
    a: Name
    b: Name
    a_major: Literal["k", "mn"]
    b_major: Literal["k", "mn"]
    sfa: Name | None = None
    sfb: Name | None = None
    sfa_rows: int = 1
    """Rows of the tile that share a scale of a."""
    sfb_per_column: bool = False
    sfb_columns: int = 0
    sfb_by_lanes: bool = False
    """Whether warps read B's scales from memory, a K block a lane."""
    unroll: int = 1
    cast_a: bool = False
    """Whether warps read A, cast it and multiply out of registers."""
    overlap_epilogue: bool = False
    whole_rounds: bool = False
    partials: int = 1
    """Sets of registers in which products wait for their scales."""
    shares: int = 1
    """Warpgroups with the same rows, each of which multiplies so many ``steps`` of every slot."""
    meeting: int = 0
    """Where their sums meet in shared memory."""

    @property
    def read_by_lanes(self) -> Name | None:
        """B's scales, if warps read them from memory: of the product's columns, or of its rows if n is on these."""
        held = self.sfa if self.row_axis == "n" else self.sfb
        return held if self.sfb_by_lanes else None

    @property
    def units(self) -> int:
        """Accumulator blocks of one warpgroup."""
        return self.row_blocks * self.col_blocks

    @property
    def accumulators(self) -> int:
        """fp32 registers a thread holds for the tile."""
        return self.units * self.width // 2


class UmmaPlan(Node):
    """A tcgen05 product: one instruction shape, its descriptor, and where scales are picked from.

    ``a`` and ``b`` are the instruction's operands: a's rows lie on the lanes of tensor memory, b's on its columns.
    ``lane_axis`` says which of m and n that puts on the lanes.
    """

    kind: Literal["tcgen05"] = "tcgen05"
    instruction: str
    call: Literal["f16", "tf32", "mxf8f6f4", "mxf4", "mxf4nvf4"]
    rows: int
    columns: int
    lane_axis: Literal["m", "n"] = "m"
    step_k: int
    steps: int
    ctas: Literal[1, 2]
    descriptor: int
    a: Name
    b: Name
    a_major: Literal["k", "mn"]
    b_major: Literal["k", "mn"]
    sfa: Name | None = None
    sfb: Name | None = None
    sfa_block: int = 0
    sfb_block: int = 0
    """Elements of k that one scale covers."""
    cast_a: bool = False
    """Whether a comes out of tensor memory, cast."""
    tmem_columns: int = 0
    tmem_address: int = 0
    """Columns to allocate, and the shared-memory offset of the word that their address is written to."""


class MmaSyncPlan(Node):
    """A product of warps out of registers: one instruction shape, the grid of warps, and where scales are picked from.

    ``a`` and ``b`` are the instruction's operands: a's rows are the fragments' rows, b's their columns. ``row_axis``
    says which of m and n the rows are. A warp has ``row_blocks`` blocks of 16 rows and ``column_blocks`` of 8 columns.
    """

    kind: Literal["mma_sync"] = "mma_sync"
    instruction: str
    call: Literal["bf16", "tf32", "e4m3", "mxf8f6f4", "mxf4nvf4_2x", "mxf4nvf4_4x"]
    row_axis: Literal["m", "n"] = "m"
    step_k: int
    steps: int
    warp_rows: int
    warp_columns: int
    row_blocks: int
    column_blocks: int
    row_bytes: Literal[64, 128]
    """Bytes of k of a row in shared memory."""
    a: Name
    b: Name
    a_type: DType
    b_type: DType
    a_major: Literal["k", "mn"]
    b_major: Literal["k", "mn"]
    sfa: Name | None = None
    sfb: Name | None = None
    sfa_block: int = 0
    sfb_block: int = 0
    """Elements of k that one scale covers."""
    unroll: int = 1
    cast_a: bool = False
    """Whether a's fragments are cast on their way to the product."""

    @property
    def accumulators(self) -> int:
        """fp32 registers a thread holds for the tile."""
        return 4 * self.row_blocks * self.column_blocks

    @property
    def warps(self) -> int:
        """Warps of the grid."""
        return self.warp_rows * self.warp_columns
