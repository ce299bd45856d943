"""The vocabulary: kernel specs and plans as frozen data. Imports pydantic and nothing of ours."""

from gemmgen.ir.dtype import Arch, DType
from gemmgen.ir.layout import AnyPlan, AnySpec, LayoutPlan, LayoutSpec
from gemmgen.ir.node import Node
from gemmgen.ir.operand import Operand, split_axis
from gemmgen.ir.plan import (
    MmaPlan,
    MmaSyncPlan,
    Param,
    Part,
    Plan,
    RingPlan,
    RolePlan,
    StepPlan,
    StorePlan,
    TensorMapPlan,
    UmmaPlan,
)
from gemmgen.ir.roles import (
    BlockScale,
    FetchTiles,
    MmaSync,
    Multiplier,
    Ring,
    Role,
    Tcgen05,
    TmaLoad,
    TmemStore,
    TransposeScales,
    Wgmma,
)
from gemmgen.ir.schedule import Cluster, LaunchControl, OneTile, Persistent, SplitK, Tile
from gemmgen.ir.spec import KernelSpec
from gemmgen.ir.steps import Bias, Cast, Residual, Scale, Step, Store

__all__ = [
    "AnyPlan",
    "AnySpec",
    "Arch",
    "Bias",
    "BlockScale",
    "Cast",
    "Cluster",
    "DType",
    "FetchTiles",
    "KernelSpec",
    "LaunchControl",
    "LayoutPlan",
    "LayoutSpec",
    "MmaPlan",
    "MmaSync",
    "MmaSyncPlan",
    "Multiplier",
    "Node",
    "OneTile",
    "Operand",
    "Param",
    "Part",
    "Persistent",
    "Plan",
    "Residual",
    "Ring",
    "RingPlan",
    "Role",
    "RolePlan",
    "Scale",
    "SplitK",
    "Step",
    "StepPlan",
    "Store",
    "StorePlan",
    "Tcgen05",
    "TensorMapPlan",
    "Tile",
    "TmaLoad",
    "TmemStore",
    "TransposeScales",
    "UmmaPlan",
    "Wgmma",
    "split_axis",
]
