"""A CUDA kernel that edits a tensor map on the device, one matrix after the other, in parts that tests exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gemmgen import sim
from gemmgen.runtime.nvrtc import compile_ptx

ROWS, COLUMNS = 8, 32  # of a box of float32
KERNEL = r"""
#include "ptx/control.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/tensor_map.cuh"
#include "ptx/tma.cuh"

struct Matrix {
  const float* data;
  u32 columns, pitch;  // bytes
};

extern "C" __global__ void k(const Matrix* matrices, u32 count, ptx::TensorMap* slots, float* out,
                             const __grid_constant__ ptx::TensorMap base) {
  extern __shared__ __align__(1024) u8 smem[];
  auto& map = *reinterpret_cast<ptx::TensorMap*>(smem + 2048);
  ptx::TensorMap* slot = slots;
  u32 box = u32(__cvta_generic_to_shared(smem)), edited = box + 2048, bar = box + 2304;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    map = base;
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  for (u32 i = 0; i < count; ++i) {
    Matrix matrix = matrices[i];
BODY
    ptx::mbarrier_wait(bar, i & 1);
    for (u32 x = threadIdx.x; x < 256; x += blockDim.x) out[i * 256 + x] = reinterpret_cast<const float*>(smem)[x];
    ptx::fence_proxy_async();
    __syncthreads();
  }
}
"""
EDIT = """
      ptx::replace_map_address(edited, matrix.data);
      ptx::replace_map_extent<0>(edited, matrix.columns);
      ptx::replace_map_pitch<0>(edited, matrix.pitch);
"""
COPY = "      *slot = map;\n"
RELEASE = "      ptx::release_maps();\n"
ACQUIRE = "      ptx::acquire_map(slot);\n"
LOAD = """
      ptx::mbarrier_arrive_expect_tx(bar, 1024);
      ptx::tma_load_2d(box, *slot, 0, 0, bar);
"""


def of(who: str, *parts: str) -> str:
    """The parts, done by some threads only."""
    return f"    if ({who}) {{\n{''.join(parts)}    }}\n"


ONE = "threadIdx.x == 0"
WARP = "    if (warp == 0) ptx::publish_map(slot, edited);\n"
BY_STORES = of(ONE, EDIT, COPY, RELEASE, ACQUIRE, LOAD)
BY_FENCED_COPY = of(ONE, EDIT) + "    __syncwarp();\n" + WARP + of(ONE, ACQUIRE, LOAD)
BY_ANOTHER_WARP = of("threadIdx.x == 32", EDIT, COPY, RELEASE) + "    __syncthreads();\n" + of(ONE, ACQUIRE, LOAD)


def cuda_of(body: str) -> str:
    """The kernel with these statements for every matrix."""
    return KERNEL.replace("BODY", body)


@lru_cache
def ptx_of(body: str) -> sim.Module:
    return sim.load(compile_ptx(cuda_of(body), "sm90", "maps.cu").text)


@dataclass
class Matrices:
    """Matrices of different bases and pitches inside one buffer, and what a box of each must hold."""

    pitches: tuple[int, ...] = (48, 32, 64, 20)  # elements
    columns: tuple[int, ...] = (40, 32, 64, 20)
    data: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.data = np.random.default_rng(7).standard_normal(ROWS * sum(self.pitches)).astype(np.float32)

    def starts(self) -> list[int]:
        return [ROWS * sum(self.pitches[:i]) for i in range(len(self.pitches))]

    def expected(self) -> np.ndarray:
        boxes = np.zeros((len(self.pitches), ROWS, COLUMNS), np.float32)
        for box, start, pitch, columns in zip(boxes, self.starts(), self.pitches, self.columns, strict=True):
            width = min(columns, COLUMNS)
            box[:, :width] = self.data[start : start + ROWS * pitch].reshape(ROWS, pitch)[:, :width]
        return boxes


def run(
    body: str, schedule: sim.Schedule, cluster: int = 1, races: str = "fault", matrices: Matrices | None = None
) -> tuple[np.ndarray, sim.Report]:
    """Boxes [matrices, 8, 32] that CTA 0 stored, and the report."""
    matrices = matrices or Matrices()
    gpu = sim.Gpu(schedule, races=races)
    address = gpu.map(matrices.data, "data")
    table = np.zeros(len(matrices.pitches), np.dtype([("data", "<u8"), ("columns", "<u4"), ("pitch", "<u4")]))
    table["data"] = [address + 4 * start for start in matrices.starts()]
    table["columns"], table["pitch"] = matrices.columns, [4 * pitch for pitch in matrices.pitches]
    out = np.full((cluster, len(table), ROWS, COLUMNS), np.nan, np.float32)
    base = sim.encode_tensor_map("float32", address, [COLUMNS, ROWS], [4 * COLUMNS], [COLUMNS, ROWS])
    places = [gpu.map(table, "matrices"), gpu.alloc(1024, "slots"), gpu.map(out, "out")]
    matrices_, slots, out_ = (place.to_bytes(8, "little") for place in places)
    params = [matrices_, len(table).to_bytes(4, "little"), slots, out_, base]
    report = gpu.launch(ptx_of(body), "k", (cluster,), (64,), params, cluster=(cluster,), shared_bytes=4096)
    return out[0], report
