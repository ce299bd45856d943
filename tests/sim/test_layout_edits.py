"""Mistakes planted in the PTX of layout kernels: pairs, turns, smem_swizzle, bounds and the barrier; each is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from planted.ptx_text import Statement, delete, find, replace, replace_all, rewrite

from gemmgen import catalog, sim
from gemmgen.commands.relayout import expected_memory, memory_of, random_layout_operands
from gemmgen.ir import Arch, DType, LayoutSpec
from gemmgen.ops.block import whole_block
from gemmgen.ops.dispatch import encoder
from gemmgen.ops.kernels import Kernel, kernel_of
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.arguments import Problem, TensorView, grid_size
from gemmgen.runtime.compiler import cached_ptx
from gemmgen.runtime.sim_target import SimKernel, SimTarget
from gemmgen.runtime.simulation import Simulation

FP4 = catalog.to_k_major(Arch.SM100, DType.E2M1)
PACK = catalog.pack_ue8m0(Arch.SM100, 128)
SIZES = {FP4.name: {"m": 300, "k": 64}, PACK.name: {"m": 250, "k": 9}}
TIMINGS = ("early", "random", "starve")


@cache
def shipped(spec: LayoutSpec) -> tuple[Kernel, str]:
    text = kernel_of(spec).text
    return kernel_of(spec), cached_ptx(text.source, text.arch, text.file_name).text


def run(spec: LayoutSpec, ptx: str, schedule: str) -> str:
    """What shows in a run: the simulator's error, wrong bytes, a warning, or nothing."""
    kernel, _ = shipped(spec)
    sizes = SIZES[spec.name]
    operands = random_layout_operands(spec, sizes, seed=3)
    target = SimTarget(Simulation(resolve("sm100"), schedule))
    views = {
        name: TensorView(target.address(each, name), tuple(each.shape), each.stride())
        for name, each in operands.items()
    }
    params = whole_block(kernel.plan, Problem(sizes, views, {}), encoder(target))
    grid = (grid_size(kernel.plan, sizes, target.sms), 1, 1)
    module = sim.load(ptx, source=kernel.text.source)
    try:
        target.launch(SimKernel(kernel.text, module), grid, params)
    except sim.SimulationError as error:
        return f"{type(error).__name__}: {error}"
    if not torch.equal(memory_of(operands["destination"]), expected_memory(spec, operands)):
        return "wrong bytes"
    return "".join(target.reports[0].warnings)


@pytest.mark.parametrize("spec", [FP4, PACK], ids=lambda spec: spec.name)
@pytest.mark.parametrize("schedule", TIMINGS)
def test_the_unedited_kernel_is_right_and_silent(spec: LayoutSpec, schedule: str) -> None:
    assert run(spec, shipped(spec)[1], schedule) == ""


def barrier_deleted(ptx: str) -> str:
    return delete(ptx, find(ptx, "bar.sync"))


def pairs_not_anew(ptx: str) -> str:
    """The odd line's number stays in the low half of its byte: a transpose of bytes."""
    halves = {each.operands[1] for each in find(ptx, "and.b32", lambda s: s.operands[2] == "-252645136")}
    shifts = find(ptx, "shl.b32", lambda s: s.operands[2] == "4" and s.target in halves)
    return replace_all(ptx, shifts, lambda s: rewrite(s, _2="0"))


def bytes_turned_wrongly(ptx: str) -> str:
    first = find(ptx, "prmt.b32")[0]
    return replace(ptx, first, rewrite(first, _3=str(0x4150)))


def smem_swizzle_on_one_side_only(ptx: str) -> str:
    """Written as it should be, read as if chunks lay in order."""
    last_store = find(ptx, "st.shared")[-1].start
    xors = find(ptx, "xor.b32", lambda s: s.start > last_store)
    return replace_all(ptx, xors, lambda s: f"mov.b32 {s.target}, {s.operands[1]};")


def decided(ptx: str, comparison: Statement, how: str) -> str:
    """A comparison that comes out the same for every thread: of a number with itself."""
    same = comparison.operands[1]
    kind = comparison.opcode.rsplit(".", 1)[1]
    return replace(ptx, comparison, f"setp.{how}.{kind} {comparison.target}, {same}, {same};")


def reads_past_the_end(ptx: str) -> str:
    """Every line is taken to have whole chunks to the end of the tile."""
    return decided(ptx, find(ptx, "setp.le.u64")[0], "eq")


def padding_rows_not_zeroed(ptx: str) -> str:
    """Rows that pad get the scales of the block they would belong to."""
    return decided(ptx, find(ptx, "setp.ge.u32")[0], "ne")


@pytest.mark.parametrize(
    ("spec", "change", "says"),
    [
        (FP4, barrier_deleted, r"^Race|wrong bytes"),
        (FP4, pairs_not_anew, "wrong bytes"),
        (FP4, bytes_turned_wrongly, "wrong bytes"),
        (FP4, smem_swizzle_on_one_side_only, r"^Fault.*ld\.shared|wrong bytes"),
        (FP4, reads_past_the_end, r"^OutOfBounds.*ld\.global.*source"),
        (PACK, padding_rows_not_zeroed, "wrong bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_mistake_is_found(spec: LayoutSpec, change: Callable[[str], str], says: str) -> None:
    _, ptx = shipped(spec)
    edited = change(ptx)
    assert edited != ptx
    found = next(filter(None, (run(spec, edited, schedule) for schedule in TIMINGS)), "")
    assert re.search(says, found), found or "the mistake went unnoticed"
