"""Layout kernels: from a spec to its plan, the plan's print and the CUDA text. The same for every architecture.

A tile is 128 bytes of 32 strips of lines; nothing here knows which tensor core will read what is written.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from gemmgen.backends.common import digest
from gemmgen.backends.limits import LIMITS
from gemmgen.backends.render import environment
from gemmgen.ir import DType, LayoutPlan, LayoutSpec, Operand, Param, split_axis

WORD_BITS = 32
STRIPS = 32
LINE_BYTES = 128
"""A destination line of the tile: a word of each strip."""
STATIC_LIMIT = 49152
"""Shared memory that every GPU gives a CTA without being asked."""
UNSIGNED = {4: "u8", 8: "u8", 16: "u16", 32: "u32"}
"""The C type of an addressable unit of memory."""


def lower(spec: LayoutSpec) -> LayoutPlan:
    """The plan of a layout spec; raises ``ValueError`` when the element type is none that it moves."""
    bits = spec.destination.dtype.bits
    elements = WORD_BITS // bits
    lines = STRIPS * elements
    shared = lines * LINE_BYTES
    threads = 32 * spec.warps
    limits = LIMITS[spec.arch]
    assert shared <= min(STATIC_LIMIT, limits.shared_per_cta) and threads <= limits.threads_per_cta
    rows = dict(map(split_axis, spec.source.box))["m"]
    return LayoutPlan(
        name=spec.name,
        arch=spec.arch,
        spec_digest=digest(spec),
        move=_move(spec),
        bits=cast(Literal[4, 8, 16, 32], bits),
        threads=threads,
        shared_bytes=shared,
        tile_m=lines,
        tile_k=lines * (4 if spec.packs else 1),
        tile_lines=lines,
        lines=elements,
        row_repeat=rows,
        fill_pads=spec.fill_pads,
        source=spec.source,
        destination=spec.destination,
        params=_params(spec),
    )


def _move(spec: LayoutSpec) -> Literal["transpose", "pack", "pack_bytes"]:
    if not spec.packs:
        return "transpose"
    return "pack" if spec.source.dtype == DType.F32 else "pack_bytes"


def _params(spec: LayoutSpec) -> tuple[Param, ...]:
    fields = []
    for each in spec.operands:
        fields.append(Param(name=each.name, kind="pointer", operand=each.name, dtype=each.dtype))
        fields.append(Param(name=f"{each.name}_stride", kind="stride", operand=each.name))
    return (*fields, Param(name="m", kind="extent"), Param(name="k", kind="extent"))


def render(plan: LayoutPlan) -> str:
    """The CUDA source of a plan."""
    return environment().get_template("layout.cu.jinja").render(**_view(plan))


def table(plan: LayoutPlan) -> str:
    """The plan in plain text, ending with a newline."""
    elements = WORD_BITS // plan.bits
    pads = ", pads zeroed" if plan.fill_pads else ""
    repeat = f", a row for {plan.row_repeat}" if plan.row_repeat > 1 else ""
    strip = "4 runs of 16 B" if plan.move == "pack" else f"{plan.lines} lines x 16 B"
    lines = [
        f"{plan.name}: {plan.threads} threads, {plan.shared_bytes} B smem, {plan.arch}",
        f"  source      {_described(plan.source)}{repeat}: a strip of {strip} a thread",
        f"  {plan.move.removesuffix('_bytes'):<11} {_moved(plan, elements)}",
        f"  smem        {plan.tile_lines} lines of {LINE_BYTES} B @0, chunk of 16 B ^ line / {4 * elements}",
        f"  destination {_described(plan.destination)}{pads}: lines of 8 x 16 B",
        f"  grid        one_tile, tiles of {plan.tile_m}x{plan.tile_k}",
    ]
    return "\n".join(lines) + "\n"


def _described(operand: Operand) -> str:
    return f"{operand.dtype} [{', '.join(operand.box)}], {operand.inner} contiguous"


def _moved(plan: LayoutPlan, elements: int) -> str:
    if plan.move == "pack":
        return "UE8M0 bytes of 4 along k become a word, 4 words a strip"
    if plan.move == "pack_bytes":
        return "4 bytes along k are a word, 4 words a strip"
    if elements == 1:
        return "4 words a strip"
    paired = ", paired anew" if plan.bits == 4 else ""
    return f"{elements} x {elements} elements of {plan.bits} bits in registers{paired}, {4 * elements} words a strip"


def _view(plan: LayoutPlan) -> dict[str, Any]:
    """What the template prints, as finished strings."""
    source = plan.source
    inner, outer = _axis(source.inner), _axis(source.outer)
    lines = f"p.{outer}" if plan.row_repeat == 1 else f"gemmgen::ceil_div(p.{outer}, {plan.row_repeat})"
    written = f"gemmgen::bytes_of<{plan.bits}>(p.{outer})"
    packs = plan.move != "transpose"
    words = f"gemmgen::ceil_div(p.{inner}, 4)" if packs else f"p.{inner}"
    return {
        "plan": plan,
        "params": [_param_line(param, plan) for param in plan.params],
        "source_lines": f"{lines}, gemmgen::bytes_of<{source.dtype.bits}>(p.{inner})",
        "read": _read(plan, inner, outer),
        "destination_lines": f"{words}, {f'gemmgen::whole_chunks({written})' if plan.fill_pads else written}",
        "write": f"gemmgen::write_tile<{plan.bits}, {plan.threads}>(destination, "
        f"{f'{inner} / 4' if packs else inner}, gemmgen::bytes_of<{plan.bits}>({outer}))",
    }


def _axis(axis: str) -> str:
    return split_axis(axis)[0]


def _read(plan: LayoutPlan, inner: str, outer: str) -> str:
    start = f"gemmgen::bytes_of<{plan.source.dtype.bits}>({inner})"
    if plan.move == "pack":
        return f"gemmgen::read_scales<{plan.row_repeat}, {plan.threads}>(source, {outer}, p.{outer}, {start})"
    return f"gemmgen::read_tile<{plan.bits}, {plan.threads}>(source, {outer}, {start})"


def _param_line(param: Param, plan: LayoutPlan) -> str:
    if param.kind == "pointer":
        assert param.dtype is not None
        const = "" if param.operand == plan.output else "const "
        return f"{const}{UNSIGNED[param.dtype.bits]}* {param.name};"
    return f"{'u64' if param.kind == 'stride' else 'u32'} {param.name};"
