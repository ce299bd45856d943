"""tensormap.replace: a map copied to shared memory, one field edited there, published to global memory, then used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from .case import PRELUDE, Case, In, Scalar, generator, out, scratch
from .tma import BEHIND, Copy

EDIT = r"""
extern "C" __global__ void edited_load(const u8* tensor, u32* to, u64* place, const __grid_constant__ TensorMap map,
                                       u32 words, u32 box_bytes, int c0, int c1) {
  u32 bar = address(smem) + 4 * words, mine = bar + 128;
  if (threadIdx.x < 16) ((u64*)(smem + 4 * words + 128))[threadIdx.x] = map.opaque[threadIdx.x];
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) ((u32*)smem)[i] = 0xeeeeeeee;
  if (threadIdx.x == 0) barrier_init(bar, 1);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    EDITS
  }
  __syncwarp();
  if (threadIdx.x < 32) {
    PUBLISH
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(place) : "memory");
    barrier_expect(bar, box_bytes);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 ::"r"(address(smem)), "l"(place), "r"(bar), "r"(c0), "r"(c1) : "memory");
  }
  barrier_wait(bar, 0);
  copy_out(to, words);
}
"""
BY_STORES = r"""
    if (threadIdx.x < 16) place[threadIdx.x] = ((u64*)(smem + 4 * words + 128))[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
"""
BY_FENCED_COPY = r"""
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                 "[%0], [%1], 128;" ::"l"(place), "r"(mine) : "memory");
"""
BEFORE = Copy("bfloat16", (64, 16), (64, 8), (0, 0), "128b")
SCALAR_FIELDS = {
    "elemtype": "b32",
    "swizzle_mode": "b32",
    "fill_mode": "b32",
    "rank": "b32",
    "interleave_layout": "b32",
}


@dataclass(frozen=True)
class Edit:
    """One tensormap.replace and the copy that the edited map stands for."""

    name: str
    text: str
    after: Copy
    offset: int = 0  # of the tensor that the edited map addresses
    publish: str = BY_STORES


def _replace(field: str, value: str, ordinal: str = "", width: str = "b32") -> str:
    ordinal = f"{ordinal}, " if ordinal else ""
    if field in SCALAR_FIELDS and field != "rank":
        text = f"tensormap.replace.tile.{field}.shared::cta.b1024.b32 [%0], {value};"
        return f'asm volatile("{text}" ::"r"(mine) : "memory");'
    kind = {"b32": '"r"((u32)', "b64": '"l"((u64)'}[width]
    text = f"tensormap.replace.tile.{field}.shared::cta.b1024.{width} [%0], {ordinal}%1;"
    return f'asm volatile("{text}" ::"r"(mine), {kind}({value})) : "memory");'


EDITS = (
    Edit("address", _replace("global_address", "(u64)tensor + 256", width="b64"), BEFORE, 256),
    Edit("dim 0", _replace("global_dim", "40", "0"), replace(BEFORE, dims=(40, 16), row_bytes=128)),
    Edit("dim 1", _replace("global_dim", "5", "1"), replace(BEFORE, dims=(64, 5))),
    Edit("stride", _replace("global_stride", "256", "0", "b64"), replace(BEFORE, row_bytes=256)),
    Edit("box", _replace("box_dim", "4", "1"), replace(BEFORE, box=(64, 4))),
    Edit("element stride", _replace("element_stride", "2", "1"), replace(BEFORE, steps=(1, 2))),
    Edit("element type", _replace("elemtype", "1"), BEFORE),
    Edit("swizzle", _replace("swizzle_mode", "0"), replace(BEFORE, swizzle="none")),
    Edit("fenced copy", _replace("global_dim", "5", "1"), replace(BEFORE, dims=(64, 5)), publish=BY_FENCED_COPY),
)


def cases() -> Iterator[Case]:
    for edit in EDITS:
        source = PRELUDE + EDIT.replace("EDITS", edit.text).replace("PUBLISH", edit.publish)
        tensor = generator(edit.name).integers(0, 256, 8192, dtype=np.uint8)
        shared = np.full(BEFORE.shared_bytes, 0xEE, dtype=np.uint8)
        for at, place, inside in edit.after.elements():
            shared[at : at + 2] = tensor[edit.offset + place :][:2] if inside else 0
        numbers = (BEFORE.shared_bytes // 4, edit.after.box_bytes, 0, 0)
        yield Case(
            family="tensormap.replace",
            name=f"tensormap.replace {edit.name}",
            source=source,
            kernel="edited_load",
            parameters=(
                In(tensor),
                out(BEFORE.shared_bytes // 4),
                scratch(256),
                BEFORE.map_of(0),
                *map(Scalar.u32, numbers),
            ),
            block=(64, 1, 1),
            shared_bytes=BEFORE.shared_bytes + BEHIND,
            expected=(shared.view(np.uint32),),
        )
