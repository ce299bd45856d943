"""What is set for the process: how many multiprocessors products use, and whether they start early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, install
from grouped_problems import counts_of, ends
from grouped_problems import fp8_problem as grouped_problem
from problems import bf16_problem, fp8_problem
from sm100_problems import fp8, product

import gemmgen
from gemmgen import ops
from gemmgen.catalog import Shape, finished_output, fp8_gemm_nt
from gemmgen.ir import DType
from gemmgen.ops import dispatch, hot_call, settings
from gemmgen.ops.admission import WALKING
from gemmgen.ops.cost import Cost
from gemmgen.ops.family import Family
from gemmgen.ops.selection import Choices, select
from gemmgen.ops.settings import Settings
from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.sim_target import SimTarget

ARCHS = ("sm90", "sm100", "sm120")
LAUNCH = SimTarget.launch


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    settings._change(**Settings()._asdict())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """Name, CTAs and whether it started early, of every launch on the simulator."""
    made: list[tuple[str, int, bool]] = []

    def launch(self: SimTarget, handle: Any, grid: Any, params: bytes, stream: int, early: bool, *rest: Any) -> None:
        made.append((handle.text.entry, grid[0], early))
        LAUNCH(self, handle, grid, params, stream, early, *rest)

    monkeypatch.setattr(SimTarget, "launch", launch)
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    monkeypatch.setattr(settings, "_sms_here", lambda: 132)
    yield install(monkeypatch)
    hot_call.forget()


# ------------------------------------------------------------------------------------------------ multiprocessors


def test_it_is_set_and_restored_around_calls() -> None:
    with gemmgen.simulate("sm90", sms=8):
        before = ops.get_num_sms()
        ops.set_num_sms(np.int64(3))  # type: ignore[arg-type]
        assert (before, ops.get_num_sms(), type(ops.get_num_sms())) == (8, 3, int)
        ops.set_num_sms(before)
        assert settings.now() == Settings(), "all of them are no limit"
    with gemmgen.simulate("sm90", sms=2):
        settings._change(num_sms=5)
        assert ops.get_num_sms() == 2, "no more than there are"


@pytest.mark.parametrize("value", [0, -1, 9, 2**40])
def test_others_than_the_device_has_are_refused(value: int) -> None:
    text = rf"^num_sms: is {value}; must be a number of multiprocessors from 1 to 8, which the device has$"
    with gemmgen.simulate("sm90", sms=8), pytest.raises(ValueError, match=text):
        ops.set_num_sms(value)
    assert settings.now() == Settings()


@pytest.mark.parametrize("value", [2.0, "4", True, None])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^num_sms: is a .*; must be a whole number of SMs, such as 66$"):
        ops.set_num_sms(value)


def test_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_sms_here", lambda: None)
    with pytest.raises(DeviceError, match=r"^there is no GPU and none is simulated; call it with one, or in"):
        ops.get_num_sms()
    with pytest.raises(ValueError, match=r"^num_sms: is 0; must be a number of multiprocessors from 1$"):
        ops.set_num_sms(0)
    ops.set_num_sms(4)
    assert ops.get_num_sms() == 4


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("arch", ARCHS)
def test_results_are_right_with_any_number_and_no_more_ctas_are_launched(
    arch: str, limit: int, launches: list[tuple[str, int, bool]]
) -> None:
    """Dense, of few rows and of many, and in groups; layout kernels apart."""
    a, b = fp8(130, 256, seed=1), fp8(264, 256, (128, 128), seed=2)
    x, w = bf16_problem(40, 264, 256)
    masked, ended = grouped_problem(counts_of((3, 0, 12), 12)), grouped_problem(ends((5, 0, 90), tail=2))
    with gemmgen.simulate(arch, sms=8):
        ops.set_num_sms(limit)
        assert torch.equal(ops.fp8_gemm_nt(a.fp32, b.fp32), product(a, b))
        assert torch.equal(ops.fp8_gemm_nt((a.data[:3], a.fp32[1][:3]), b.fp32), product(a, b)[:3])
        assert torch.equal(ops.bf16_gemm_nt(x, w), (x.float() @ w.float().T).bfloat16())
        for problem in (masked, ended):
            d = problem.output()
            if problem is masked:
                ops.m_grouped_fp8_gemm_nt_masked(problem.a, problem.b, d, problem.layout.given)
            else:
                ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, problem.layout.given, offsets=True)
            assert torch.equal(d, problem.product.to(d.dtype))
    products = [ctas for name, ctas, _ in launches if "gemm" in name]
    assert len(products) == 5 and max(products) == limit


def test_partial_sums_of_shared_tiles_fit_what_was_made_for_them(launches: list[tuple[str, int, bool]]) -> None:
    a, b = torch.randint(-2, 3, (70, 1024)).bfloat16(), torch.randint(-2, 3, (24, 1024)).float()
    for arch in ARCHS:
        for limit in (1, 3, 8):
            d, squares = torch.empty(70, 24), torch.empty(70)
            with gemmgen.simulate(arch, sms=8):
                ops.set_num_sms(limit)
                ops.tf32_hc_prenorm_gemm(a, b, d, squares)
            assert torch.equal(d, a.float() @ b.T) and torch.equal(squares, a.float().square().sum(1))
            assert launches[-1][1] <= limit


@pytest.mark.parametrize("operator", ["fp8_gemm_nt", "bf16_gemm_nt"])
@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_of_a_cta_for_every_tile_give_way(arch: str, operator: str) -> None:
    shapes = [(m, 576, 7168) for m in (1, 64, 256, 4096)]
    free = [select(operator, *shape, 132, Choices(arch=arch)).picked.spec for shape in shapes]
    settings._change(num_sms=1)
    alone = [each.spec for shape in shapes for each in select(operator, *shape, 1, Choices(arch=arch)).candidates]
    assert all(each.schedule.kind in WALKING and each.cluster.size == 1 for each in alone)
    assert arch != "sm90" or any(each.schedule.kind not in WALKING for each in free)


@pytest.mark.parametrize("beside", [False, True])
def test_tiles_for_other_epilogues_stand_in_where_no_usual_one_has_few_ctas(beside: bool) -> None:
    each_its_cta, walking = Shape(64, 64, groups=1, splits=1, unroll=1), Shape(128, 128)
    cost = Cost({"any": 1.0})
    family = Family((each_its_cta,), lambda _: cost, fp8_gemm_nt, others=(walking,), beside=beside)
    epilogue = finished_output(DType.BF16, False, None, "relu")

    def tiles() -> list[int]:
        return [each.spec.tile.m for each in family.candidates(epilogue)]

    assert tiles() == [64, 128][: 1 + beside]
    settings._change(num_sms=4)
    assert tiles() == [128]
    family = replace(family, others=())
    assert tiles() == [64], "launched all the same"


def test_repeated_calls_are_those_of_the_setting(gpu: FakeGpu) -> None:
    """Nothing that was launched before is repeated under another limit; back again, all is."""
    p = fp8_problem(256, 4096, 512)
    d = torch.zeros(256, 4096, dtype=torch.bfloat16)

    def launched() -> tuple[bool, int]:
        ops.fp8_gemm_nt(*p.pairs, d)
        return gpu.launches[-1].hot, gpu.launches[-1].grid[0]

    assert [launched()[0] for _ in range(2)] == [False, True]
    everything = launched()[1]
    ops.set_num_sms(20)
    assert [launched() for _ in range(2)] == [(False, 20), (True, 20)]
    ops.set_num_sms(132)
    assert launched() == (True, everything) and everything > 20
    ops.set_num_sms(20)
    assert launched() == (True, 20)
    hot_call.forget()
    ops.set_num_sms(132)
    assert launched()[0] is False, "what rests is forgotten, too"


def test_prepared_launches_are_those_of_the_setting() -> None:
    """Also of dispatchers, which compiled graphs reach without what is in front."""
    dispatcher = ops.op(select("bf16_gemm_nt", 64, 64, 64, 4, Choices()).picked.spec).dispatcher
    first = dispatcher.prepared
    first["known"] = "a launch"  # type: ignore[assignment]
    settings._change(num_sms=3)
    assert dispatcher.prepared == {}
    settings._change(num_sms=None)
    assert dispatcher.prepared is first
    for limit in range(1, 2 * settings.SETTINGS_LIMIT):
        settings._change(num_sms=limit)
        assert dispatcher.prepared == {}
    assert len(dispatcher._by_settings) <= settings.SETTINGS_LIMIT


def test_settings_that_come_back_stay_prepared_among_many_that_do_not(gpu: FakeGpu) -> None:
    """Only what was not in use for longest gives way, in front of operators and in their dispatchers."""
    dispatcher = ops.op(select("bf16_gemm_nt", 64, 64, 64, 4, Choices()).picked.spec).dispatcher
    a, b = bf16_problem(8, 16, 64)
    usual = dispatcher.prepared
    ops.bf16_gemm_nt(a, b)
    for limit in range(1, 2 * settings.SETTINGS_LIMIT):
        ops.set_num_sms(limit)
        assert dispatcher.prepared is not usual
        ops.bf16_gemm_nt(a, b)
        ops.set_num_sms(132)
        assert dispatcher.prepared is usual
        ops.bf16_gemm_nt(a, b)
    assert [launch.hot for launch in gpu.launches] == [False] + [False, True] * (2 * settings.SETTINGS_LIMIT - 1)


def test_a_change_that_is_interrupted_leaves_nothing_of_other_settings(gpu: FakeGpu) -> None:
    p = fp8_problem(256, 4096, 512)
    d = torch.zeros(256, 4096, dtype=torch.bfloat16)
    for _ in range(2):
        ops.fp8_gemm_nt(*p.pairs, d)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    told: list[Settings] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hot_call.HotCalls, "switch", interrupted)
        patch.setattr(settings, "_watchers", [lambda _, after: told.append(after), *settings._watchers])
        ops.set_num_sms(20)
    assert told == [settings.now()] == [Settings(num_sms=20)]
    for _ in range(2):
        ops.fp8_gemm_nt(*p.pairs, d)
    assert [launch.hot for launch in gpu.launches] == [False, True, False, True]
    assert {launch.grid[0] for launch in gpu.launches[2:]} == {20}


# ------------------------------------------------------------------------------------------------ early launches


def test_dense_products_of_sm90_start_early_and_read_nothing_before_they_wait(
    launches: list[tuple[str, int, bool]],
) -> None:
    """The simulator counts every tensor as in use until then, weights, scales and bias too."""
    a, b = fp8(130, 384, seed=1), fp8(264, 384, (128, 128), seed=2)
    few = a.data[:3], a.fp32[1][:3]
    x, w = bf16_problem(3, 264, 1024)
    ops.set_pdl(True)
    assert ops.get_pdl()
    with gemmgen.simulate("sm90", sms=8):
        assert torch.equal(ops.fp8_gemm_nt(a.fp32, b.fp32), product(a, b))
        assert torch.equal(ops.fp8_gemm_nt(few, b.fp32), product(a, b)[:3])
        assert torch.equal(ops.bf16_gemm_nt(x, w), (x.float() @ w.float().T).bfloat16())
        ops.bf16_gemm_nt(x, w, bias=torch.zeros(264), activation="relu")
        ops.fp8_gemm_nt_mxfp8out(few, b.fp32)
    assert all(early and name.endswith("_early") for name, _, early in launches) and len(launches) == 5
    assert any("_s" in name for name, *_ in launches), "one that would read weights ahead, if it were asked to"


@pytest.mark.parametrize("arch", ARCHS)
def test_other_products_start_as_they_do_without(arch: str, launches: list[tuple[str, int, bool]]) -> None:
    problem = grouped_problem(ends((5, 0, 9), tail=2))
    a, b = fp8(9, 256, seed=1), fp8(24, 256, (128, 128), seed=2)
    ops.set_pdl(True)
    with gemmgen.simulate(arch, sms=2):
        ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, None, problem.layout.given, offsets=True)
        if arch != "sm90":
            ops.fp8_gemm_nt(a.fp32, b.fp32)
    assert not any(early for *_, early in launches)


def test_calls_made_before_do_not_start_otherwise(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    for enabled in (False, True, False, True):
        ops.set_pdl(enabled)
        ops.bf16_gemm_nt(a, b), ops.bf16_gemm_nt(a, b)
    assert [launch.programmatic for launch in gpu.launches] == [False, False, True, True] * 2
    assert [launch.hot for launch in gpu.launches] == [False, True, False, True] + 4 * [True]


@pytest.mark.parametrize("value", [1, "yes", None])
def test_what_is_no_flag_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^enabled: is .*; must be True or False$"):
        ops.set_pdl(value)
    assert not ops.get_pdl()


def test_what_was_prepared_while_a_setting_changed_and_changed_back_is_not_repeated(gpu: FakeGpu) -> None:
    """Another thread's limit holds while a first call chooses and is lifted before that launches."""
    a, b = bf16_problem(256, 4096, 64)
    d = torch.zeros(256, 4096, dtype=torch.bfloat16)
    load = gpu.load

    def interrupted(text: Any) -> Any:
        ops.set_num_sms(132)
        return load(text)

    ready = dispatch.Dispatcher._ready

    def limited(self: Any, *arguments: Any) -> Any:
        ops.set_num_sms(20)
        return ready(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "load", interrupted)
        patch.setattr(dispatch.Dispatcher, "_ready", limited)
        ops.bf16_gemm_nt(a, b, d)
    assert settings.now() == Settings()
    ops.bf16_gemm_nt(a, b, d), ops.bf16_gemm_nt(a, b, d)
    first, *later = gpu.launches
    hot_call.forget()
    ops.bf16_gemm_nt(a, b, d)
    usual = gpu.launches[-1]
    assert first != usual and later == [usual, usual]
