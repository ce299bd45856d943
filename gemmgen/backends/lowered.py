"""What each architecture lowers: a table of the bodies of roles and of schedules, and sentences for what it lacks."""

from __future__ import annotations

from gemmgen.ir import (
    Arch,
    ClusterSplitK,
    CutRemainder,
    FetchTiles,
    KernelSpec,
    LaunchControl,
    MmaSync,
    Multiplier,
    Node,
    OneTile,
    Persistent,
    SplitK,
    Tcgen05,
    TmaLoad,
    TmemCast,
    TmemStore,
    TransposeScales,
    Wgmma,
)

BODIES: dict[Arch, tuple[type[Node], ...]] = {
    Arch.SM90: (TmaLoad, Wgmma),
    Arch.SM100: (TmaLoad, TransposeScales, TmemCast, Tcgen05, TmemStore, FetchTiles),
    Arch.SM120: (TmaLoad, MmaSync),
}
"""Every one at most once in a spec: emitted text has a function for each."""
SCHEDULES: dict[Arch, tuple[type[Node], ...]] = {
    Arch.SM90: (OneTile, Persistent, CutRemainder, SplitK, ClusterSplitK),
    Arch.SM100: (OneTile, Persistent, LaunchControl, SplitK),
    Arch.SM120: (OneTile, Persistent, SplitK),
}


def check_lowered(spec: KernelSpec) -> None:
    """Refuse roles and schedules of other architectures, and a second role with the same body."""
    if not isinstance(spec.schedule, SCHEDULES[spec.arch]):
        kind = spec.schedule.kind
        raise ValueError(
            f"spec {spec.name!r} has schedule {kind}, which {spec.arch} does not have; use Persistent, or set arch to "
            f"{_rows(SCHEDULES, spec.schedule)}"
        )
    seen: dict[str, str] = {}
    for role in spec.roles:
        body = role.body
        where = f"role {role.name!r} has body {body.kind}"
        if isinstance(body, Multiplier) and not isinstance(body, BODIES[spec.arch]):
            (multiplies,) = (each.__name__ for each in BODIES[spec.arch] if issubclass(each, Multiplier))
            raise ValueError(f"{where}; {spec.arch} multiplies with {multiplies}")
        if not isinstance(body, BODIES[spec.arch]):
            raise ValueError(
                f"{where}, which {spec.arch} does not have; remove it, or set arch to {_rows(BODIES, body)}"
            )
        if body.kind in seen:
            raise ValueError(f"{where}, as role {seen[body.kind]!r} has; {spec.arch} lowers one, so remove either")
        seen[body.kind] = role.name


def _rows(table: dict[Arch, tuple[type[Node], ...]], node: Node) -> str:
    """The architectures that do have it."""
    return " or ".join(arch for arch, types in table.items() if isinstance(node, types))
