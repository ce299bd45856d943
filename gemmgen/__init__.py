"""gemmgen: a Python spec of a GEMM-shaped pipeline becomes CUDA and a torch-callable.

Importing it loads neither torch nor CUDA: names are brought in when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmgen.ir import (
        Activation,
        Apply,
        Arch,
        Bias,
        BlockScale,
        Cast,
        Cluster,
        ClusterSplitK,
        CutRemainder,
        DType,
        Epilogue,
        FetchTiles,
        Gate,
        HeadSplit,
        Keep,
        KernelSpec,
        LaunchControl,
        LayoutSpec,
        MmaSync,
        OneTile,
        Operand,
        Persistent,
        Plan,
        Quantise,
        Reduce,
        Residual,
        Ring,
        Role,
        Scale,
        SoftCap,
        SplitK,
        Step,
        Store,
        SumOfSquares,
        Tcgen05,
        Tile,
        TmaLoad,
        TmemStore,
        TransposeScales,
        Wgmma,
    )
    from gemmgen.ops import fuse, op, use_tuned
    from gemmgen.runtime.simulation import simulate

__all__ = [
    "Activation",
    "Apply",
    "Arch",
    "Bias",
    "BlockScale",
    "Cast",
    "Cluster",
    "ClusterSplitK",
    "CutRemainder",
    "DType",
    "Epilogue",
    "FetchTiles",
    "Gate",
    "HeadSplit",
    "Keep",
    "KernelSpec",
    "LaunchControl",
    "LayoutSpec",
    "MmaSync",
    "OneTile",
    "Operand",
    "Persistent",
    "Plan",
    "Quantise",
    "Reduce",
    "Residual",
    "Ring",
    "Role",
    "Scale",
    "SoftCap",
    "SplitK",
    "Step",
    "Store",
    "SumOfSquares",
    "Tcgen05",
    "Tile",
    "TmaLoad",
    "TmemStore",
    "TransposeScales",
    "Wgmma",
    "fuse",
    "op",
    "simulate",
    "use_tuned",
]

_ELSEWHERE = {
    **dict.fromkeys(("fuse", "op", "use_tuned"), "gemmgen.ops"),
    "simulate": "gemmgen.runtime.simulation",
}
_ROOMS = ("backends", "catalog", "ir", "ops", "runtime", "sim")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"gemmgen.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'gemmgen' has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "gemmgen.ir")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
