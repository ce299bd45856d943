"""P21, P22, P28 on a real GPU: launches, streams, capture, threads, devices, and the host time of a hot launch."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from gemmgen.runtime import targets
from gemmgen.runtime.errors import CaptureError, DriverError
from gemmgen.runtime.gpu_target import GpuKernel, GpuTarget
from gemmgen.runtime.kernel_text import KernelText

FAMILY = {9: "sm90", 10: "sm100", 12: "sm120"}
SOURCE = """\
struct Params {
  const float* a;
  const float* b;
  float* out;
  unsigned n;
};

extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Params p) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.out[i] = p.a[i] + p.b[i];
}
"""
CLUSTER_SOURCE = """\
struct Params {
  unsigned* out;
};

extern "C" __global__ void cluster_size(const __grid_constant__ Params p) {
  extern __shared__ unsigned shared[];
  unsigned size;
  asm volatile("mov.u32 %0, %cluster_nctaid.x;" : "=r"(size));
  shared[22000 + threadIdx.x] = size;
  p.out[blockIdx.x] = shared[22000 + threadIdx.x];
}
"""


def kernel(name: str = "vector_add") -> KernelText:
    arch = FAMILY[torch.cuda.get_device_capability()[0]]
    return KernelText(SOURCE.replace("NAME", name), name, arch, threads=128, shared_bytes=0)


def launch_add(target: GpuTarget, handle: GpuKernel, tensors: list[torch.Tensor], programmatic: bool = False) -> None:
    n = tensors[0].numel()
    params = struct.pack("<QQQI4x", *(target.address(tensor) for tensor in tensors), n)
    target.launch(handle, (-(-n // 128), 1, 1), params, target.current_stream(), programmatic)


def random_tensors(device: int = 0, n: int = 1000) -> list[torch.Tensor]:
    return [*torch.randn(2, n, device=f"cuda:{device}").unbind(), torch.zeros(n, device=f"cuda:{device}")]


@pytest.mark.parametrize("programmatic", [False, True])
def test_vector_add(programmatic: bool) -> None:
    target, tensors = targets.gpu(), random_tensors()
    launch_add(target, target.load(kernel()), tensors, programmatic)
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


def test_cluster_and_large_shared_memory() -> None:
    arch = FAMILY[torch.cuda.get_device_capability()[0]]
    text = KernelText(CLUSTER_SOURCE, "cluster_size", arch, threads=32, shared_bytes=90_112, cluster=(2, 1, 1))
    target, out = targets.gpu(), torch.zeros(4, dtype=torch.int32, device="cuda")
    target.launch(target.load(text), (4, 1, 1), struct.pack("<Q", target.address(out)), target.current_stream())
    assert out.tolist() == [2, 2, 2, 2]


def test_grid_that_is_no_multiple_of_the_cluster_is_refused_and_the_context_lives() -> None:
    arch = FAMILY[torch.cuda.get_device_capability()[0]]
    text = KernelText(CLUSTER_SOURCE, "cluster_size", arch, threads=32, shared_bytes=90_112, cluster=(2, 1, 1))
    target, out = targets.gpu(), torch.zeros(4, dtype=torch.int32, device="cuda")
    with pytest.raises((ValueError, DriverError), match="cluster"):
        target.launch(target.load(text), (3, 1, 1), struct.pack("<Q", target.address(out)), target.current_stream())
    torch.cuda.synchronize()


def test_current_side_stream_is_used() -> None:
    target, tensors = targets.gpu(), random_tensors()
    handle, side = target.load(kernel()), torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert target.current_stream() == side.cuda_stream
        torch.cuda._sleep(20_000_000)
        launch_add(target, handle, tensors)
    done = side.query()
    side.synchronize()
    assert not done
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


def test_first_load_inside_capture_is_refused_and_the_process_stays_usable() -> None:
    target, tensors = targets.gpu(), random_tensors()
    text, graph = kernel("first_used_in_capture"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensors[2].add_(1)
        with pytest.raises(CaptureError, match="warm this shape up first"):
            target.load(text)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(tensors[2], torch.ones_like(tensors[2]))
    handle = target.load(text)
    warm = torch.cuda.CUDAGraph()
    with torch.cuda.graph(warm):
        launch_add(target, target.load(text), tensors)
    for _ in range(3):
        tensors[0].normal_()
        warm.replay()
        torch.cuda.synchronize()
        assert torch.equal(tensors[2], tensors[0] + tensors[1])
    assert handle is target.load(text)


def test_another_thread_may_load_while_a_graph_is_captured() -> None:
    target, tensors = targets.gpu(), random_tensors()
    handle = target.load(kernel())
    graph, errors = torch.cuda.CUDAGraph(), []

    def load() -> None:
        try:
            target.load(kernel("loaded_beside_a_capture"))
        except Exception as error:
            errors.append(error)

    with torch.cuda.graph(graph):
        launch_add(target, handle, tensors)
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        launch_add(target, handle, tensors)
    graph.replay()
    torch.cuda.synchronize()
    assert not errors and torch.equal(tensors[2], tensors[0] + tensors[1])


def test_a_thread_that_never_touched_cuda_can_launch() -> None:
    target, tensors = targets.gpu(), random_tensors()
    handle, stream = target.load(kernel()), target.current_stream()
    params = struct.pack("<QQQI4x", *(target.address(tensor) for tensor in tensors), 1000)
    thread = threading.Thread(target=lambda: target.launch(handle, (8, 1, 1), params, stream))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


def test_the_tensors_device_is_used_and_the_callers_kept() -> None:
    last = torch.cuda.device_count() - 1  # on a one-GPU machine this is the plain case
    tensors = random_tensors(last)
    torch.cuda.set_device(0)
    target = targets.gpu(last)
    launch_add(target, target.load(kernel()), tensors)
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(last)
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


def test_driver_tensor_map_is_128_bytes_and_depends_on_the_address() -> None:
    target, matrix = targets.gpu(), torch.zeros(64, 128, dtype=torch.bfloat16, device="cuda")
    maps = [
        target.encode_tensor_map("bf16", target.address(matrix) + offset, (128, 32), (256,), (64, 8), (1, 1), 128)
        for offset in (0, 0, 4096)
    ]
    assert [len(data) for data in maps] == [128] * 3 and maps[0] == maps[1] != maps[2]
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        target.encode_tensor_map("bf16", target.address(matrix) + 8, (128, 32), (256,), (64, 8), (1, 1), 128)


def test_hot_launch_makes_no_allocation_and_no_synchronisation() -> None:
    target, tensors = targets.gpu(), random_tensors()
    handle = target.load(kernel())
    launch_add(target, handle, tensors)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda._sleep(200_000_000)
    launch_add(target, handle, tensors)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


FORK_SCRIPT = """
import os, sys, torch
sys.path.insert(0, TESTS)
import gemmgen.runtime.targets
from test_launch import kernel, launch_add, random_tensors
from gemmgen.runtime import targets
def use():
    target, tensors = targets.gpu(), random_tensors()
    launch_add(target, target.load(kernel()), tensors)
    torch.cuda.synchronize()
    assert torch.equal(tensors[2], tensors[0] + tensors[1])
if AFTER_USE:
    use()
child = os.fork()
if child == 0:
    try:
        use()
        print("child ran", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(("after_use", "said"), [(False, "child ran"), (True, "Cannot re-initialize CUDA in forked")])
def test_fork_before_and_after_use(after_use: bool, said: str) -> None:
    script = FORK_SCRIPT.replace("AFTER_USE", str(after_use)).replace("TESTS", repr(str(Path(__file__).parent)))
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert said in done.stdout, done.stdout + done.stderr
