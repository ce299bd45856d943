"""P21, P22: loading and launching on a GPU, against a driver that records what it is given."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cuda.bindings import driver as real
from fake_driver import FakeDriver

from gemmgen.runtime import driver
from gemmgen.runtime.errors import CaptureError, DeviceError, DriverError
from gemmgen.runtime.gpu_target import GRAPH_ZEROS, PER_THREAD_STREAM, STANDING_ZEROS, GpuTarget
from gemmgen.runtime.kernel_text import KernelText
from gemmgen.runtime.launch_frame import LaunchFrame

PARAMS = bytes(range(32))


@dataclasses.dataclass
class Machine:
    """The fake driver and what the faked torch answers."""

    cuda: FakeDriver
    current_device: int = 0
    capturing: bool = False
    stream: int = 1000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cache_directory: Path) -> Machine:
    faked = Machine(FakeDriver())

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        former, faked.current_device = faked.current_device, index
        yield
        faked.current_device = former

    monkeypatch.setattr(driver, "bindings", lambda: faked.cuda)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: faked.capturing)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: faked.current_device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: faked.stream + index, raising=False)
    return faked


@pytest.fixture
def text(vector_add: str) -> KernelText:
    return KernelText(vector_add, "vector_add", "sm90", threads=128, shared_bytes=65536, cluster=(2, 1, 1))


def test_a_launch_passes_grid_block_cluster_stream_and_parameters(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(0)
    target.launch(target.load(text), (4, 3, 2), PARAMS, stream=77)
    (launch,) = machine.cuda.launches
    assert (launch.grid, launch.block, launch.shared_bytes, launch.stream) == ((4, 3, 2), (128, 1, 1), 65536, 77)
    assert launch.params == PARAMS
    assert launch.attributes == {"CLUSTER_DIMENSION": (2, 1, 1)}
    assert machine.cuda.function_attributes == {"MAX_DYNAMIC_SHARED_SIZE_BYTES": 65536}
    assert (target.family, target.sms, target.current_stream()) == ("sm90", 132, 1000)


def test_programmatic_launch_is_an_attribute_of_that_launch_only(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(0)
    handle = target.load(dataclasses.replace(text, cluster=(1, 1, 1)))
    target.launch(handle, (1, 1, 1), PARAMS, programmatic_launch=True)
    target.launch(handle, (1, 1, 1), PARAMS)
    assert [launch.attributes for launch in machine.cuda.launches] == [
        {"PROGRAMMATIC_STREAM_SERIALIZATION": (1,)},
        {},
    ]


def test_a_cluster_above_eight_is_allowed_explicitly(machine: Machine, text: KernelText) -> None:
    GpuTarget(0).load(dataclasses.replace(text, cluster=(16, 1, 1)))
    assert machine.cuda.function_attributes["NON_PORTABLE_CLUSTER_SIZE_ALLOWED"] == 1


def test_a_hot_launch_is_one_driver_call(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(0)
    handle = target.load(text)
    target.launch(handle, (2, 1, 1), PARAMS)
    machine.cuda.calls.clear()
    assert target.load(text) is handle
    target.launch(handle, (2, 1, 1), PARAMS)
    assert machine.cuda.calls == []  # the one function was looked up when the target was opened
    assert len(machine.cuda.launches) == 2


def test_another_current_device_is_switched_and_restored(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(1)
    handle = target.load(text)
    assert machine.cuda.contexts == ["caller's"]
    target.launch(handle, (2, 1, 1), PARAMS)
    assert machine.cuda.launches[0].context == "primary of 1"
    assert machine.cuda.contexts == ["caller's"] and machine.current_device == 0
    assert target.current_stream() == 1001


def test_a_thread_without_a_context_gets_one_for_the_launch(machine: Machine, text: KernelText) -> None:
    machine.cuda.launch_status = [real.CUresult.CUDA_ERROR_INVALID_CONTEXT]
    target = GpuTarget(0)
    target.launch(target.load(text), (2, 1, 1), PARAMS)
    assert [launch.context for launch in machine.cuda.launches] == ["caller's", "primary of 0"]
    assert machine.cuda.contexts == ["caller's"]


def test_the_caller_gets_his_context_back_when_the_launch_fails(machine: Machine, text: KernelText) -> None:
    machine.cuda.launch_status = [real.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES]
    target = GpuTarget(1)
    with pytest.raises(DriverError):
        target.launch(target.load(text), (2, 1, 1), PARAMS)
    assert machine.cuda.contexts == ["caller's"]


def test_a_first_load_during_capture_is_refused_before_the_driver_is_touched(
    machine: Machine, text: KernelText
) -> None:
    target = GpuTarget(0)
    machine.capturing = True
    machine.cuda.calls.clear()
    with pytest.raises(CaptureError, match="warm this shape up first"):
        target.load(text)
    assert machine.cuda.calls == []
    machine.capturing = False
    handle = target.load(text)
    machine.capturing = True
    assert target.load(text) is handle
    target.launch(handle, (2, 1, 1), PARAMS)


def test_a_load_does_not_disturb_a_capture_of_another_thread(machine: Machine, text: KernelText) -> None:
    GpuTarget(0).load(text)
    assert [mode.rsplit("_", 1)[1] for mode in machine.cuda.capture_modes] == ["RELAXED", "GLOBAL"]


def test_launches_at_the_same_time_do_not_share_memory(machine: Machine, text: KernelText) -> None:
    handle = GpuTarget(0).load(text)
    first, second = handle.take(False), handle.take(False)
    first.fill((2, 1, 1), PARAMS)
    second.fill((4, 1, 1), PARAMS[::-1])
    first.stream[0], second.stream[0] = 77, 78
    first.launch(), second.launch()
    assert [(launch.params, launch.grid, launch.stream) for launch in machine.cuda.launches] == [
        (PARAMS, (2, 1, 1), 77),
        (PARAMS[::-1], (4, 1, 1), 78),
    ]
    handle.give_back(False, first)
    assert handle.take(False) is first and handle.take(True) is not second


@pytest.mark.parametrize("size", [1, 31, 32, 128, 576])
def test_parameter_blocks_start_where_tensor_maps_may(machine: Machine, text: KernelText, size: int) -> None:
    frames = [LaunchFrame(text, "function", size, programmatic=False) for _ in range(8)]
    for frame in frames:
        assert len(frame.words) == -(-size // 8)
        assert ctypes.addressof(ctypes.c_char.from_buffer(frame.words)) % 64 == 0


def test_a_parameter_block_of_the_wrong_size_is_refused(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(0)
    with pytest.raises(ValueError, match="params: 31 bytes were passed, vector_add takes a struct of 32 bytes"):
        target.launch(target.load(text), (2, 1, 1), PARAMS[:31])
    assert machine.cuda.launches == []


def test_a_failed_launch_says_what_was_launched(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(0)
    machine.cuda.launch_status = [real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DriverError) as error:
        target.launch(target.load(text), (2, 1, 1), PARAMS)
    for part in ("vector_add", "cuda:0", "(2, 1, 1)", "65536 B", "CUDA_ERROR_ILLEGAL_ADDRESS", "must be restarted"):
        assert part in str(error.value)


def test_a_grid_that_is_no_multiple_of_the_cluster_is_named(machine: Machine, text: KernelText) -> None:
    target = GpuTarget(0)
    machine.cuda.launch_status = [real.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE]
    with pytest.raises(ValueError, match=r"grid: \(3, 1, 1\) must be positive and a multiple of the cluster"):
        target.launch(target.load(text), (3, 1, 1), PARAMS)


def test_a_kernel_for_another_architecture_is_refused(machine: Machine, text: KernelText) -> None:
    with pytest.raises(DeviceError, match=r"vector_add is written for sm100, cuda:0 is sm_90a"):
        GpuTarget(0).load(dataclasses.replace(text, arch="sm100"))


def test_a_device_of_the_family_gets_its_own_code(machine: Machine, text: KernelText) -> None:
    machine.cuda.capability = (10, 3)
    target = GpuTarget(0)
    target.load(dataclasses.replace(text, arch="sm100"))
    assert (target.family, target.architecture.code) == ("sm100", "sm_103a")


def test_an_unsupported_device_is_named(machine: Machine) -> None:
    machine.cuda.capability = (8, 9)
    with pytest.raises(DeviceError, match=r"cuda:0 has compute capability 8\.9; .*sm90, sm100, sm120"):
        GpuTarget(0)


def test_too_much_shared_memory_is_refused(machine: Machine, text: KernelText) -> None:
    with pytest.raises(DeviceError, match=r"needs 300000 B of shared memory, cuda:0 has 232448"):
        GpuTarget(0).load(dataclasses.replace(text, shared_bytes=300000))


def test_launches_of_a_stream_share_zeros(machine: Machine) -> None:
    target = GpuTarget(0)
    first = target.standing_zeros(100)
    assert first == target.standing_zeros(STANDING_ZEROS) != 0
    machine.stream = 2000
    other = target.standing_zeros(100)
    assert other not in (0, first)
    graphs, *streams = machine.cuda.zeroed
    assert graphs[1:] == (GRAPH_ZEROS, 1000) and "cuStreamSynchronize" in machine.cuda.calls
    assert streams == [(first, STANDING_ZEROS, 1000), (other, STANDING_ZEROS, 2000)]
    assert machine.cuda.contexts == ["caller's"]


def test_a_captured_launch_has_zeros_of_its_own_while_there_are_some(machine: Machine) -> None:
    target = GpuTarget(0)
    machine.capturing = True
    assert target.standing_zeros(100) == 0, "nothing is allocated then"
    machine.capturing = False
    shared = target.standing_zeros(100)
    machine.capturing = True
    begin = machine.cuda.zeroed[0][0]
    found = [target.standing_zeros(size) for size in (100, 300, STANDING_ZEROS)]
    assert found == [begin, begin + 256, begin + 768] and shared not in found
    rest = [target.standing_zeros(STANDING_ZEROS) for _ in range(GRAPH_ZEROS // STANDING_ZEROS)]
    assert rest[-2:] == [0, 0] and len(set(rest)) == len(rest) - 1
    assert max(rest) + STANDING_ZEROS <= begin + GRAPH_ZEROS


def test_no_zeros_stand_where_launches_may_run_beside_each_other(machine: Machine) -> None:
    target = GpuTarget(0)
    assert target.standing_zeros(STANDING_ZEROS + 1) == 0
    machine.stream = PER_THREAD_STREAM
    assert target.standing_zeros(100) == 0
    machine.stream, machine.current_device = 1000, 1
    assert target.standing_zeros(100) == 0
    assert not machine.cuda.zeroed
