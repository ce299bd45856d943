"""Atomics on global and shared memory: an address per thread for the returned values, shared addresses for the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .case import PRELUDE, Array, Case, In, Out, generator, out

THREADS = 128


@dataclass(frozen=True)
class Atomic:
    """One operation and what it leaves behind, in numpy."""

    op: str
    type: str
    dtype: type
    apply: Callable[[Array, Array], Array]
    modifier: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}_{self.type}"

    @property
    def wide(self) -> bool:
        return np.dtype(self.dtype).itemsize == 8


def _halves(values: Array, dtype: type) -> Array:
    return values.view(np.uint16).view(dtype).astype(np.float64)


def _packed_add(dtype: type) -> Callable[[Array, Array], Array]:
    return lambda old, new: (_halves(old, dtype) + _halves(new, dtype)).astype(dtype).view(np.uint32)


INTEGER = (
    Atomic("add", "u32", np.uint32, np.add),
    Atomic("min", "s32", np.int32, np.minimum),
    Atomic("max", "s32", np.int32, np.maximum),
    Atomic("min", "u32", np.uint32, np.minimum),
    Atomic("max", "u32", np.uint32, np.maximum),
    Atomic("and", "b32", np.uint32, np.bitwise_and),
    Atomic("or", "b32", np.uint32, np.bitwise_or),
    Atomic("xor", "b32", np.uint32, np.bitwise_xor),
    Atomic("inc", "u32", np.uint32, lambda old, n: np.where(old >= n, 0, old + 1).astype(np.uint32)),
    Atomic("dec", "u32", np.uint32, lambda old, n: np.where((old == 0) | (old > n), n, old - 1).astype(np.uint32)),
    Atomic("exch", "b32", np.uint32, lambda old, n: n),
    Atomic("add", "u64", np.uint64, np.add),
    Atomic("exch", "b64", np.uint64, lambda old, n: n),
)
FLOAT = (
    Atomic("add", "f32", np.float32, np.add),
    Atomic("add", "bf16x2", np.uint32, _packed_add(ml_dtypes.bfloat16), ".noftz"),
    Atomic("add", "f16x2", np.uint32, _packed_add(np.float16), ".noftz"),
)
SPACES = ("global", "shared")


def cases() -> Iterator[Case]:
    source = PRELUDE + "".join(_kernels(atomic, space) for atomic in (*INTEGER, *FLOAT) for space in SPACES) + SWAP
    for atomic in (*INTEGER, *FLOAT):
        for space in SPACES:
            yield _returned(source, atomic, space)
            if atomic in INTEGER and atomic.op not in ("exch", "inc", "dec"):
                yield _reduced(source, atomic, space)
    for space in SPACES:
        yield _swap(source, space)


def _kernels(atomic: Atomic, space: str) -> str:
    number, kind = ("u64", "l") if atomic.wide else ("u32", "r")
    kind = "f" if atomic.type == "f32" else kind
    number = "float" if atomic.type == "f32" else number
    at = "(u64)place" if space == "global" else "address(place)"
    at_kind = "l" if space == "global" else "r"
    opcode = f"{space}.{atomic.op}{atomic.modifier}.{atomic.type}"
    return f"""
extern "C" __global__ void {space}_{atomic.name}(const {number}* in, {number}* memory, {number}* to) {{
  {number}* array = {"memory" if space == "global" else f"({number}*)smem"};
  if (array != memory) array[threadIdx.x] = memory[threadIdx.x];
  {number}* place = array + threadIdx.x, old;
  asm volatile("atom.{opcode} %0, [%1], %2;"
               : "={kind}"(old) : "{at_kind}"({at}), "{kind}"(in[threadIdx.x]) : "memory");
  to[threadIdx.x] = old;
  if (array != memory) memory[threadIdx.x] = array[threadIdx.x];
}}
extern "C" __global__ void {space}_red_{atomic.name}(const {number}* in, {number}* memory) {{
  {number}* array = {"memory" if space == "global" else f"({number}*)smem"};
  if (array != memory && threadIdx.x < 4) array[threadIdx.x] = memory[threadIdx.x];
  __syncthreads();
  {number}* place = array + threadIdx.x % 4;
  {_red(atomic, opcode, at, at_kind, kind)}
  __syncthreads();
  if (array != memory && threadIdx.x < 4) memory[threadIdx.x] = array[threadIdx.x];
}}
"""


def _red(atomic: Atomic, opcode: str, at: str, at_kind: str, kind: str) -> str:
    if atomic.op == "exch":
        return ""
    return f'asm volatile("red.{opcode} [%0], %1;" ::"{at_kind}"({at}), "{kind}"(in[threadIdx.x]) : "memory");'


SWAP = r"""
extern "C" __global__ void global_cas(const u32* in, u32* memory, u32* to) {
  u32 i = threadIdx.x;
  asm volatile("atom.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(to[i]) : "l"(memory + i), "r"(in[i]), "r"(in[i] + 100) : "memory");
}
extern "C" __global__ void shared_cas(const u32* in, u32* memory, u32* to) {
  u32 i = threadIdx.x, old, *array = (u32*)smem;
  array[i] = memory[i];
  asm volatile("atom.shared.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old) : "r"(address(array + i)), "r"(in[i]), "r"(in[i] + 100) : "memory");
  to[i] = old;
  memory[i] = array[i];
}
"""


def _values(atomic: Atomic, rng: np.random.Generator, count: int) -> Array:
    if atomic.type == "f32":
        return rng.standard_normal(count).astype(np.float32)
    if atomic in FLOAT:
        dtype = ml_dtypes.bfloat16 if atomic.type == "bf16x2" else np.float16
        return rng.standard_normal(2 * count).astype(dtype).view(np.uint32)
    octets = rng.integers(0, 256, count * np.dtype(atomic.dtype).itemsize, dtype=np.uint8).view(atomic.dtype)
    return np.where(rng.random(count) < 0.5, octets, octets & 7).astype(atomic.dtype)


def _returned(source: str, atomic: Atomic, space: str) -> Case:
    name = f"{space} {atomic.name}"
    rng = generator(name)
    old, new = _values(atomic, rng, THREADS), _values(atomic, rng, THREADS)
    return Case(
        family=f"atom.{space}",
        name=name,
        source=source,
        kernel=f"{space}_{atomic.name}",
        parameters=(In(new), Out(old), out(THREADS, old.dtype)),
        block=(THREADS, 1, 1),
        shared_bytes=8 * THREADS,
        expected=(atomic.apply(old, new), old),
    )


def _reduced(source: str, atomic: Atomic, space: str) -> Case:
    """All threads meet on four addresses; the operations commute, so the order does not show."""
    name = f"{space} red {atomic.name}"
    rng = generator(name)
    old, new = _values(atomic, rng, 4), _values(atomic, rng, THREADS)
    expected = old.copy()
    for part in new.reshape(-1, 4):
        expected = atomic.apply(expected, part)
    return Case(
        family=f"red.{space}",
        name=name,
        source=source,
        kernel=f"{space}_red_{atomic.name}",
        parameters=(In(new), Out(old)),
        block=(THREADS, 1, 1),
        shared_bytes=64,
        expected=(expected,),
    )


def _swap(source: str, space: str) -> Case:
    rng = generator(f"{space} cas")
    old = rng.integers(0, 4, THREADS, dtype=np.uint32)
    guess = rng.integers(0, 4, THREADS, dtype=np.uint32)
    return Case(
        family=f"atom.{space}",
        name=f"{space} cas_b32",
        source=source,
        kernel=f"{space}_cas",
        parameters=(In(guess), Out(old), out(THREADS)),
        block=(THREADS, 1, 1),
        shared_bytes=8 * THREADS,
        expected=(np.where(old == guess, guess + 100, old), old),
    )
