"""Launching on the simulator: the same kernel text and argument block, CPU tensors in place, bounds of the storage."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest
import torch

from gemmgen import sim
from gemmgen.runtime import targets
from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.kernel_text import KernelText
from gemmgen.runtime.sim_target import SimTarget, storage_bytes
from gemmgen.runtime.simulation import SCHEDULES, simulate
from gemmgen.sim.schedule import MODES


@pytest.fixture
def text(vector_add: str, cache_directory: Path) -> KernelText:
    return KernelText(vector_add, "vector_add", "sm90", threads=128, shared_bytes=0)


def add_on(target: SimTarget, text: KernelText, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, n: int) -> None:
    addresses = [target.address(tensor, name) for tensor, name in ((a, "a"), (b, "b"), (out, "out"))]
    target.launch(target.load(text), (-(-n // 128), 1, 1), struct.pack("<QQQI4x", *addresses, n))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_vector_add_gives_the_sum_under_every_schedule(text: KernelText, schedule: str) -> None:
    a, b, out = torch.randn(300), torch.randn(300), torch.zeros(300)
    with simulate("sm90", schedule=schedule, seed=1):
        target = targets.simulator()
        add_on(target, text, a, b, out, 300)
    assert torch.equal(out, a + b)
    assert len(target.reports) == 1 and target.reports[0].warp_instructions > 0


def test_a_simulation_collects_the_reports_of_all_its_launches(text: KernelText) -> None:
    a, b, out = torch.randn(128), torch.randn(128), torch.zeros(128)
    with simulate("sm90") as first, simulate("sm90") as second:
        add_on(targets.simulator(), text, a, b, out, 128)
        add_on(targets.simulator(), text, a, b, out, 64)
    assert first == second and first.reports == []
    assert len(second.reports) == 2 and all(report.warp_instructions > 0 for report in second.reports)
    with simulate("sm90") as third:
        assert third.reports == []


def test_views_of_one_storage_share_a_window(text: KernelText) -> None:
    data = torch.randn(3, 128)
    expected = data[0] + data[1]
    with simulate("sm90"):
        target = targets.simulator()
        assert target.address(data[1]) - target.address(data[0]) == 128 * 4
        add_on(target, text, data[0], data[1], data[2], 128)
    assert torch.equal(data[2], expected)


def test_an_access_outside_the_storage_names_the_tensor(text: KernelText) -> None:
    a, b, out = torch.randn(128), torch.randn(128), torch.zeros(100)
    with simulate("sm90"), pytest.raises(sim.OutOfBounds, match="out"):
        add_on(targets.simulator(), text, a, b, out, 128)


def test_modules_are_parsed_once_and_targets_are_fresh(text: KernelText) -> None:
    with simulate("sm90"):
        first, second = targets.simulator(), targets.simulator()
    assert first is not second and first.load(text) is second.load(text)


def test_labels_do_not_take_part_in_the_look_up(text: KernelText) -> None:
    labelled = dataclasses.replace(text, labels=["not", "hashable"])
    assert labelled == text and hash(labelled) == hash(text)


def test_a_kernel_for_another_architecture_is_refused(text: KernelText) -> None:
    with (
        simulate("sm100"),
        pytest.raises(DeviceError, match=r"written for sm90, .* sm_100a; use .*simulate\(\"sm90\"\)"),
    ):
        targets.simulator().load(text)


def test_storage_bytes_are_the_memory_itself() -> None:
    tensor = torch.zeros(4, dtype=torch.float8_e4m3fn)
    storage_bytes(tensor[2:])[1] = 0x38
    assert tensor.float().tolist() == [0.0, 1.0, 0.0, 0.0]


def test_an_empty_tensor_has_the_null_address() -> None:
    with simulate("sm90"):
        assert targets.simulator().address(torch.empty(0)) == 0


def test_tensor_maps_take_short_names_and_spans() -> None:
    with simulate("sm90"):
        target = targets.simulator()
    short = target.encode_tensor_map("bf16", 4096, (64, 32), (128,), (64, 8), (1, 1), 128)
    assert short == sim.encode_tensor_map("bfloat16", 4096, (64, 32), (128,), (64, 8), (1, 1), "128b")


def test_the_simulated_gpu_has_the_asked_shape() -> None:
    with simulate("sm90", sms=6):
        target = targets.current_target(torch.device("cpu"))
    assert (target.family, target.sms, target.current_stream()) == ("sm90", 6, 0)


def test_the_schedules_users_may_name_are_the_simulators() -> None:
    assert sorted(SCHEDULES) == sorted(MODES)
