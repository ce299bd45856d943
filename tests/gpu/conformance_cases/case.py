"""What a conformance case is: a kernel, its parameters in order, its launch shape, and what numpy expects of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class In:
    """A global array the kernel reads."""

    data: Array


@dataclass(frozen=True)
class Out:
    """A global array the kernel writes; it starts as 0xFF bytes unless data says otherwise."""

    data: Array
    ulp: int = -1  # -1: bits must agree; otherwise float32 values may differ by this many units in the last place
    compared: bool = True  # false for scratch memory


@dataclass(frozen=True)
class Map:
    """A tensor map over the array parameter number `of`, starting `offset` bytes into it."""

    of: int
    dtype: str
    dims: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    swizzle: str = "none"
    element_strides: Sequence[int] | None = None
    oob_fill: str = "zero"
    offset: int = 0

    def encode(self, encoder: Callable[..., bytes], addresses: Sequence[int]) -> bytes:
        """The 128 bytes by an encoder with the simulator's signature; addresses are those of the parameters."""
        return encoder(
            self.dtype,
            addresses[self.of] + self.offset,
            self.dims,
            self.strides,
            self.box,
            self.element_strides,
            self.swizzle,
            "none",
            self.oob_fill,
        )


@dataclass(frozen=True)
class Scalar:
    """A scalar parameter, already encoded."""

    data: bytes

    @staticmethod
    def u32(value: int) -> Scalar:
        return Scalar((value & 0xFFFFFFFF).to_bytes(4, "little"))


Parameter = In | Out | Map | Scalar


@dataclass(frozen=True)
class Case:
    """One kernel launch. `expected` holds an array per Out, or None where numpy is no oracle."""

    family: str
    name: str
    source: str
    kernel: str
    parameters: tuple[Parameter, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    expected: tuple[Array | None, ...] = field(default=())
    refused: bool = False  # the simulator must refuse it with an error
    traps: bool = False  # and the GPU must end it with an error

    @property
    def outputs(self) -> list[Out]:
        return [p for p in self.parameters if isinstance(p, Out) and p.compared]


def out(shape: int | tuple[int, ...], dtype: Any = np.uint32, ulp: int = -1) -> Out:
    """An output array of 0xFF bytes."""
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = 0xFF
    return Out(array, ulp)


def scratch(size: int) -> Out:
    """Zeroed global memory that the kernel uses and nobody compares."""
    return Out(np.zeros(size, np.uint8), compared=False)


def generator(name: str) -> np.random.Generator:
    """A random generator seeded by a case's name, the same in every process."""
    return np.random.default_rng(zlib.crc32(name.encode()))


PRELUDE = r"""
using u8 = unsigned char; using u16 = unsigned short; using u32 = unsigned int; using u64 = unsigned long long;
#define DEVICE __device__ __forceinline__
struct alignas(64) TensorMap { u64 opaque[16]; };
extern __shared__ __align__(1024) u8 smem[];

DEVICE u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE u64 address(const TensorMap& map) { return (u64)&map; }
DEVICE void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE u32 barrier_try(u32 bar, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done;
}
DEVICE void barrier_wait(u32 bar, u32 parity) { while (!barrier_try(bar, parity)) {} }
DEVICE void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE void copy_in(const u32* from, u32 words) {
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) ((u32*)smem)[i] = from[i];
}
DEVICE void copy_out(u32* to, u32 words) {
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) to[i] = ((u32*)smem)[i];
}
"""
