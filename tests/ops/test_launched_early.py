"""Calls of kernels that start early, on the simulator: it is told which memory kernels ahead may still use."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

import gemmgen
from gemmgen import catalog, sim
from gemmgen.backends import emit, lower
from gemmgen.ir import KernelSpec
from gemmgen.runtime import sim_target
from gemmgen.runtime.arguments import Problem, TensorView, in_use
from gemmgen.runtime.nvrtc import compile_ptx

TILE = catalog.Shape(64, 32, groups=1, slots=2, unroll=1)
PUSHING = catalog.bf16_gemm("nt", dataclasses.replace(TILE, splits=2), programmatic_launch=True)
WALKING = catalog.bf16_gemm("nt", TILE, programmatic_launch=True)
SHARING = catalog.bf16_gemm("nt", dataclasses.replace(TILE, share=True), programmatic_launch=True)
EXTENTS = {"m": 64, "n": 40, "k": 136}


def call(spec: KernelSpec) -> None:
    """Small integers, whose products are exact."""
    m, n, k = EXTENTS.values()
    a, b = (torch.randint(-2, 3, (rows, k)).bfloat16() for rows in (m, n))
    d = torch.full((m, n), torch.nan, dtype=torch.bfloat16)
    with gemmgen.simulate(spec.arch):
        gemmgen.op(spec)(a=a, b=b, d=d)
    assert torch.equal(d, (a.float() @ b.float().T).bfloat16())


@pytest.mark.parametrize("spec", [PUSHING, WALKING], ids=lambda spec: spec.schedule.kind)
def test_a_call_that_waits_is_right_and_one_that_does_not_is_found(
    spec: KernelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(spec)
    compiled = sim_target.cached_ptx

    def without_waits(*arguments: Any) -> Any:
        found = compiled(*arguments)
        return dataclasses.replace(found, code=found.code.replace(b"griddepcontrol.wait;", b""))

    monkeypatch.setattr(sim_target, "cached_ptx", without_waits)
    monkeypatch.setattr(sim_target, "_kernels", {})
    with pytest.raises(sim.Fault, match=r"(a|b), box at .* before their griddepcontrol\.wait") as found:
        call(spec)
    assert spec is WALKING or "): a, box" in str(found.value), "b is promised"
    call(spec.replace(name="plain", programmatic_launch=False, ahead=()))


@pytest.mark.parametrize("shape", [catalog.PairShape(64), catalog.PairShape(64, 2)], ids=["one CTA", "pair"])
def test_on_sm100_the_next_kernel_starts_when_this_one_has_its_columns(shape: catalog.PairShape) -> None:
    """It might else take them and wait for this kernel, which would wait for them."""
    spec = catalog.bf16_gemm_sm100("nt", shape).replace(programmatic_launch=True)
    steps = r"tcgen05\.alloc.*?(?:bar\.sync|barrier\.cluster\.wait).*?\.launch_dependents.*griddepcontrol\.wait"
    ptx = compile_ptx(emit(spec), "sm100", "early.cu").text
    assert re.search(steps, ptx, re.DOTALL) and ptx.count("launch_dependents;") == 1
    call(spec)


def problem(**strides: int) -> Problem:
    """Matrices a megabyte apart, in rows of some elements."""
    shapes = {"a": ("m", "k"), "b": ("n", "k"), "d": ("m", "n")}
    views = {}
    for index, (name, axes) in enumerate(shapes.items()):
        rows, columns = (EXTENTS[axis] for axis in axes)
        views[name] = TensorView(index << 20, (rows, columns), (strides.get(name, columns), 1))
    return Problem(EXTENTS, views, {}, {"partials": 5 << 20, "arrivals": 6 << 20})


def test_all_is_in_use_but_what_is_read_ahead() -> None:
    assert PUSHING.ahead == ("b",)
    a, b, d = (0, 64 * 136 * 2), (1 << 20, 40 * 136 * 2), (2 << 20, 64 * 40 * 2)
    assert in_use(lower(PUSHING), problem(), {}) == [a, d]
    assert in_use(lower(WALKING), problem(), {}) == [a, b, d]
    room = {"partials": 4096, "arrivals": 16}
    assert in_use(lower(SHARING), problem(), room) == [(5 << 20, 4096), (6 << 20, 16), a, b, d]


def test_nothing_is_in_use_by_the_time_a_plain_launch_begins() -> None:
    assert in_use(lower(catalog.bf16_gemm("nt", TILE)), problem(), {}) == []


def test_rows_that_lie_apart_are_in_use_one_by_one() -> None:
    """Between them may lie rows of what is promised: columns of one buffer."""
    found = in_use(lower(PUSHING), problem(a=200), {})
    assert found[:3] == [(0, 272), (400, 272), (800, 272)] and len(found) == 64 + 1


def test_a_matrix_that_is_both_factors_is_promised_as_one_of_them() -> None:
    given = problem()
    both = dataclasses.replace(given, tensors={**given.tensors, "a": given.tensors["b"]})
    assert in_use(lower(PUSHING), both, {}) == [(2 << 20, 64 * 40 * 2)]


def test_matrices_without_elements_are_in_nobodys_use() -> None:
    empty = TensorView(0, (64, 0), (1, 1))
    given = problem()
    assert in_use(lower(PUSHING), dataclasses.replace(given, tensors={**given.tensors, "a": empty}), {}) == [
        (2 << 20, 64 * 40 * 2)
    ]
