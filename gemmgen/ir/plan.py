"""Plan: a spec with every number decided. Templates and launchers read it; nobody writes one by hand."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gemmgen.ir.dtype import Arch, DType
from gemmgen.ir.groups import Groups
from gemmgen.ir.node import Name, Node
from gemmgen.ir.operand import HeadSplit, Operand
from gemmgen.ir.plan_products import MmaPlan, MmaSyncPlan, UmmaPlan
from gemmgen.ir.schedule import Cluster, ClusterSplitK, Schedule, SplitK, Tile
from gemmgen.ir.steps import PrologueStep, Step


class TensorMapPlan(Node):
    """How one operand is described to the copy engine: box extents (innermost first) and the axes they walk."""

    operand: Name
    dtype: DType
    axes: tuple[str, ...]
    box: tuple[int, ...]
    smem_swizzle: Literal[0, 32, 64, 128]
    part_rows: int = 0
    """Rows of the boxes of a second map, for tiles of which some rows are past the end; 0 where there is none."""
    halves: bool = False
    """Whether n comes as two halves of which a box takes 8 elements each in turn; ``box`` counts both."""
    element: Literal["u8", "bf16", "f16", "f32", "tf32", "i32", "16u4_align16b"]
    """The copy engine's name for an element. Two packed 4-bit elements are copied as one ``u8``; ``tf32`` rounds."""

    @property
    def names(self) -> tuple[str, ...]:
        """What kernels call the map, and the one of parts."""
        return (self.operand, f"{self.operand}_part") if self.part_rows else (self.operand,)


class Part(Node):
    """One operand's place in a ring. ``copy`` says who brings it: TMA, or lanes of the producer warp.

    ``offset`` is slot 0's address from the start of dynamic shared memory, ``bytes`` the distance to the next slot.
    A TMA part is ``atoms`` boxes of ``atom_bytes``, ``atom_elements`` apart along the contiguous axis; ``shared``
    CTAs of the cluster each fetch that fraction of a box and multicast it.
    """

    operand: Name
    copy_by: Literal["tma", "lanes", "words", "launch"]
    offset: int
    bytes: int
    inner_axis: str
    outer_axis: str
    atoms: int = 1
    atom_bytes: int = 0
    atom_elements: int = 0
    atom_rows: int = 0
    """Rows from one atom to the next, where products read more of them than are copied; 0 for those of the box."""
    shared: int = 1
    stack: int = 1
    """Boxes one below the other along the strided axis, of which a cut tile needs the first."""
    evict_first: bool = False
    """Whether L2 may drop its lines before others."""
    count: int = 0
    """Elements that lanes copy."""
    step: int = 1
    """Columns or rows of the problem from one copied element to the next."""
    per: int = 1
    """Problem elements one stored element stands for, along the axis that lanes walk."""
    words: int = 0
    """Words of block scales per row in a slot."""
    halves: bool = False
    """Whether n comes as two halves, of which 8 rows each lie here in turn."""
    column: int = 0
    """Where the scales lie in tensor memory."""


class RingPlan(Node):
    """A ring with addresses, barriers and transaction bytes."""

    name: Name
    slots: int
    parts: tuple[Part, ...]
    turns: Literal["k", "tile", "store", "launch"]
    every: int = 1
    full: int = 0
    full_count: int = 0
    ready: int = 0
    ready_count: int = 0
    """A barrier between filling and draining, for slots that a third role works on in place; count 0 for none."""
    empty: int = 0
    empty_count: int = 0
    tx_bytes: int = 0
    column: int = 0
    columns: int = 0
    """Slot 0's first tensor-memory column and the columns of a slot, for a ring that lives there."""

    @property
    def slot_bytes(self) -> int:
        """Bytes all parts of one slot take."""
        return sum(part.bytes for part in self.parts)

    def part(self, operand: str) -> Part:
        """The part that holds an operand."""
        return next(part for part in self.parts if part.operand == operand)


class RolePlan(Node):
    """A role's warps and registers."""

    name: Name
    kind: Literal[
        "tma_load", "wgmma", "transpose_scales", "tcgen05", "mma_sync", "fetch_tiles", "tmem_cast", "tmem_store"
    ]
    rings: tuple[Name, ...]
    first_warp: int
    warps: int
    registers: int | None


Broadcast = Literal["scalar", "element", "m", "n", "matrix"]
"""How an operand meets the m by n tile: a number, a tensor of one number, a vector, a matrix."""


class StepPlan(Node):
    """An epilogue step with its operands' shapes resolved: ``along`` is how each of them broadcasts."""

    step: Step
    along: tuple[Broadcast, ...]


class StorePlan(Node):
    """Where and how the output is written; a staged chunk is ``rows`` rows of ``row_bytes``.

    A quantised output has ``scales``, one for ``block`` columns.
    """

    operand: Name
    dtype: DType
    through: Name | None
    row_bytes: int = 0
    rows: int = 16
    slots: int = 0
    turn: int = 1
    """Chunks of a warp that share a fence and a group of copies."""
    scales: Name | None = None
    block: int = 0
    joined: bool = False
    """Whether products side by side are stored together, because a block has columns of both."""
    heads: HeadSplit | None = None
    apart: bool = False
    """Whether two products are staged one by one, beside those that follow."""
    accumulate: bool = False
    """Whether memory adds what is written to what it holds."""


class Param(Node):
    """One field of the kernel's parameter struct, in order."""

    name: Name
    kind: Literal["tensor_map", "pointer", "stride", "scalar", "extent", "workspace"]
    operand: Name | None = None
    dtype: DType | None = None
    axis: str | None = None
    """What a stride steps along."""


class Workspace(Node):
    """Memory of one launch beside its operands: for every tile so many elements of 4 bytes, fp32 numbers or counters.

    ``per`` names the axes along which tiles are counted, whole clusters of them, or groups, or says that every CTA has
    a share; without any there is one.
    """

    name: Name
    elements: int
    per: tuple[Literal["m", "n", "g", "cta"], ...]

    @property
    def counts(self) -> bool:
        """Whether it holds counters, which are 0 before a launch and after it."""
        return is_counter(self.name)


def is_counter(workspace: str) -> bool:
    """Names of counters end so."""
    return workspace.endswith("arrivals")


class PushPlan(Node):
    """Where the sums of a cluster's CTAs meet: ``buffers`` and the barrier ``full`` are addresses in shared memory.

    A slice is ``columns`` columns of a warp's 16 rows. Counted warp by warp, then column by column, every ``per_cta``
    of them belong to the next CTA; each CTA has room for what every CTA has of its own.
    """

    columns: int
    slices: int
    per_cta: int
    bytes: int
    buffers: int = 0
    full: int = 0


class MapEdits(Node):
    """Tensor maps of ``operands`` that the loading role edits for every group, at ``place`` in shared memory.

    A workspace holds two of each for every CTA.
    """

    operands: tuple[Name, ...]
    place: int


class FoundRuns(Node):
    """What a launch finds by row ids: the most parts of rows and groups there may be, and its place."""

    parts: int
    groups: int
    place: int


class Plan(Node):
    """Everything the template and the launcher need, and nothing they would have to compute."""

    name: Name
    arch: Arch
    spec_digest: str
    tile: Tile
    cluster: Cluster
    threads: int
    ctas_per_sm: int
    shared_bytes: int
    rings: tuple[RingPlan, ...]
    roles: tuple[RolePlan, ...]
    mma: MmaPlan | UmmaPlan | MmaSyncPlan = Field(discriminator="kind")
    epilogue: tuple[StepPlan, ...]
    store: StorePlan
    schedule: Schedule
    programmatic_launch: bool
    tensor_maps: tuple[TensorMapPlan, ...]
    params: tuple[Param, ...]
    operands: tuple[Operand, ...]
    prologue: tuple[PrologueStep, ...] = ()
    cut_mma: MmaPlan | None = None
    """The product of a tile of the last wave that is cut."""
    workspaces: tuple[Workspace, ...] = ()
    starts: bool = False
    """Whether sums start from the vector that the chain's first step adds, instead of from 0."""
    push: PushPlan | None = None
    ahead: tuple[Name, ...] = ()
    to_l2: tuple[Name, ...] = ()
    """What is fetched to L2 beside a tile's last K blocks."""
    groups: Groups | None = None
    map_edits: MapEdits | None = None
    found_runs: FoundRuns | None = None

    def operand(self, name: str) -> Operand:
        """The operand of that name."""
        return next(operand for operand in self.operands if operand.name == name)

    def ring(self, name: str) -> RingPlan:
        """The ring of that name."""
        return next(ring for ring in self.rings if ring.name == name)

    def role(self, name: str) -> RolePlan:
        """The role of that name."""
        return next(role for role in self.roles if role.name == name)

    @property
    def outputs(self) -> tuple[Name, ...]:
        """Operands that the kernel writes."""
        steps = (*(entry.step for entry in self.epilogue), *self.prologue)
        return tuple(name for step in steps for name in step.outputs)

    @property
    def mainloop(self) -> RingPlan:
        """The ring that holds the multiplied operands."""
        return next(ring for ring in self.rings if any(part.operand == self.mma.a for part in ring.parts))

    @property
    def barriers(self) -> list[tuple[str, int, int]]:
        """Every array of mbarriers: its name in the spec's words, offset in shared memory, length."""
        found = []
        for ring in self.rings:
            if ring.turns != "store":
                found.append((f"{ring.name}.full", ring.full, ring.slots))
                if ring.ready_count:
                    found.append((f"{ring.name}.ready", ring.ready, ring.slots))
                found.append((f"{ring.name}.empty", ring.empty, ring.slots))
        if self.push is not None:
            found.append(("push.full", self.push.full, 1))
        return found

    @property
    def splits(self) -> int:
        """CTAs that share a tile's K blocks; 0 if the launch decides."""
        return (self.schedule.splits or 0) if isinstance(self.schedule, SplitK | ClusterSplitK) else 1

    @property
    def raster_group(self) -> int:
        """Rows of tiles that are walked together."""
        if isinstance(self.schedule, ClusterSplitK):
            raise ValueError(f"{self.name}: tiles of schedule {self.schedule.kind} go down the columns, in no groups")
        return self.schedule.raster_group

    @property
    def launched_together(self) -> int:
        """CTAs of a cluster, whether they share boxes or a tile's K blocks."""
        return self.cluster.size * (self.splits if isinstance(self.schedule, ClusterSplitK) else 1)

    @property
    def sums(self) -> int:
        """fp32 registers of a thread that CTAs with shares of a tile add up: of the product, of squares of its rows."""
        squares = any(step.kind == "sum_of_squares" for step in self.prologue)
        if isinstance(self.mma, UmmaPlan):
            return self.mma.columns + 4 * squares
        return self.mma.accumulators + 4 * self.mma.row_blocks * squares

    @property
    def sliced(self) -> bool:
        """Whether outputs have a slice for each split of k."""
        return isinstance(self.schedule, SplitK) and self.schedule.slices

    @property
    def storing(self) -> RolePlan:
        """The role that runs the epilogue."""
        return next(role for role in self.roles if role.kind in ("wgmma", "mma_sync", "tmem_store"))
