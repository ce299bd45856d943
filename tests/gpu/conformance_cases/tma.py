"""TMA: tensor loads with every swizzle, out-of-bounds boxes and 1 to 5 dimensions; stores and reductions.

Boxes start at multiples of 16 bytes: what hardware does otherwise is in tma_traps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import ml_dtypes
import numpy as np

from .case import PRELUDE, Array, Case, In, Map, Out, Scalar, generator, out
from .oracles import tf32_nearest

SIZES = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float32_ftz": 4,
    "tfloat32": 4,
    "tfloat32_ftz": 4,
}
SPAN = {"none": 0, "32b": 32, "64b": 64, "128b": 128}


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


BEHIND = 384  # bytes after the box: a barrier, and from 128 an edited map


@dataclass(frozen=True)
class Copy:
    """One box copy of a packed tensor (rows padded to 16 bytes) at given coordinates and shared offset."""

    dtype: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    coords: tuple[int, ...]
    swizzle: str = "none"
    steps: tuple[int, ...] = ()
    fill: str = "zero"
    shared_offset: int = 0
    row_bytes: int = 0  # bytes between rows of the tensor, 0 for packed rows

    @property
    def element_strides(self) -> tuple[int, ...]:
        return self.steps or (1,) * len(self.dims)

    @property
    def strides(self) -> tuple[int, ...]:
        size, strides = self.row_bytes or _whole(self.dims[0] * SIZES[self.dtype], 16), []
        for dim in self.dims[1:]:
            strides.append(size)
            size *= dim
        return tuple(strides)

    @property
    def tensor_bytes(self) -> int:
        return self.strides[-1] * self.dims[-1] if self.strides else _whole(self.dims[0] * SIZES[self.dtype], 16)

    @property
    def filler(self) -> Array:
        """One element out of bounds: zero, or 16 bits that are a NaN of every floating-point type."""
        size = SIZES[self.dtype]
        return np.zeros(size, np.uint8) if self.fill == "zero" else np.tile([0xF7, 0x7F], size // 2).astype(np.uint8)

    @property
    def counts(self) -> tuple[int, ...]:
        steps = (1, *self.element_strides[1:])
        return tuple(-(-b // s) for b, s in zip(self.box, steps, strict=True))

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.counts)) * SIZES[self.dtype]

    @property
    def pitch(self) -> int:
        """Bytes between box rows in shared memory: the swizzle's span, however short the box row."""
        return SPAN[self.swizzle] or self.counts[0] * SIZES[self.dtype]

    @property
    def shared_bytes(self) -> int:
        """Room for the box and 128 bytes; the barrier and an edited map follow."""
        return _whole(self.shared_offset + int(np.prod(self.counts[1:])) * self.pitch + 128, 128)

    def map_of(self, parameter: int) -> Map:
        fields = (self.dims, self.strides, self.box, self.swizzle, self.element_strides, self.fill)
        return Map(parameter, self.dtype, *fields)

    def elements(self, whole_chunks: bool = False) -> Iterator[tuple[int, int, bool]]:
        """(shared byte, tensor byte, copied) of every element of the box; a store copies chunks of 16 bytes."""
        size, span = SIZES[self.dtype], SPAN[self.swizzle]
        steps = (1, *self.element_strides[1:])
        row_length = _whole(self.dims[0] * size, 16) // size if whole_chunks else self.dims[0]
        limits = (row_length, *self.dims[1:])
        for number, index in enumerate(product(*[range(n) for n in reversed(self.counts)])):
            where = [c + i * s for c, i, s in zip(self.coords, reversed(index), steps, strict=True)]
            inside = all(0 <= w < d for w, d in zip(where, limits, strict=True))
            row, column = divmod(number, self.counts[0])
            shared = self.shared_offset + row * self.pitch + column * size
            if span:
                shared ^= (shared >> 7) % (span // 16) << 4
            yield shared, sum(w * s for w, s in zip(where, (size, *self.strides), strict=True)), inside


B = "bfloat16"
LOADS = (
    # every swizzle, inside and over every edge
    *[
        Copy("uint8", (128, 40), (s, 8), c, w)
        for w, s in (("32b", 32), ("64b", 64), ("128b", 128))
        for c in ((0, 0), (16, 8))
    ],
    *[
        Copy(B, (100, 20), (64, 16), c, "128b")
        for c in ((0, 0), (64, 8), (-8, -3), (96, 19), (104, 0), (-64, -16), (8, 1))
    ],
    *[Copy(B, (100, 20), (s, 16), (8, 7), w) for w, s in (("none", 64), ("32b", 16), ("64b", 32))],
    *[Copy("float32", (40, 20), (s, 9), (12, 14), w) for w, s in (("none", 12), ("32b", 8), ("64b", 16), ("128b", 32))],
    # tiles that start inside a swizzle pattern
    *[
        Copy(B, (64, 32), (s, 8), (0, 3), w, shared_offset=o)
        for w, s, o in (("128b", 64, 128), ("128b", 64, 896), ("64b", 32, 384), ("32b", 16, 128))
    ],
    # box rows shorter than the span
    *[Copy(B, (64, 32), (s, 8), (0, 0), w) for w, s in (("128b", 32), ("128b", 8), ("64b", 16), ("32b", 8))],
    # 1 to 5 dimensions
    Copy("uint8", (300,), (256,), (0,)),
    Copy("uint8", (300,), (256,), (112,)),
    Copy("float32", (10,), (16,), (-4,)),
    Copy(B, (24, 5, 4), (16, 3, 3), (8, 3, 2), "32b"),
    Copy(B, (24, 5, 4), (16, 3, 3), (-8, -1, -1), "32b"),
    Copy("uint16", (24, 5, 4, 3), (32, 2, 2, 2), (8, 4, 1, 2), "64b"),
    Copy("uint32", (12, 3, 3, 3, 3), (8, 2, 2, 2, 2), (4, 2, -1, 2, 1), "32b"),
    Copy("uint64", (12, 3, 2, 2, 2), (16, 2, 2, 1, 2), (2, 1, 0, 1, 1), "128b"),
    # element strides
    Copy(B, (64, 32), (64, 16), (0, 3), "128b", steps=(1, 2)),
    Copy(B, (64, 32), (64, 9), (0, -3), "128b", steps=(1, 2)),
    Copy("uint8", (64, 9, 9), (32, 6, 8), (16, -1, 2), "32b", steps=(1, 3, 5)),
    # values that the engine changes
    *[Copy(t, (32, 8), (32, 8), (8, 0), fill="nan") for t in ("float16", B, "float32", "float64")],
    *[Copy(t, (32, 16), (32, 16), (0, 0), "128b") for t in ("float32_ftz", "tfloat32", "tfloat32_ftz", "float32")],
    *[Copy(t, (32, 8), (32, 8), (4, 0), "128b", fill="nan") for t in ("tfloat32", "float32_ftz")],
)
CHANGED = ("float32_ftz", "tfloat32", "tfloat32_ftz")
STORES = (
    *[
        Copy("uint8", (128, 40), (s, 8), (16, 35), w)
        for w, s in (("32b", 32), ("64b", 64), ("128b", 128), ("none", 48))
    ],
    *[Copy(B, (100, 20), (64, 16), c, "128b") for c in ((0, 0), (64, 8), (96, 19), (104, 0), (8, 1))],
    # rows that end inside 16 bytes: the rest of the chunk is written too
    Copy("uint8", (100, 20), (128, 16), (0, 8), "128b"),
    Copy("uint32", (50, 20), (32, 16), (32, 8), "128b"),
    Copy("uint8", (100, 20), (64, 16), (64, 8)),
    Copy(B, (64, 32), (64, 8), (0, 3), "128b", shared_offset=384),
    Copy(B, (64, 32), (32, 8), (0, 3), "128b"),
    Copy("uint32", (300,), (64,), (248,)),
    Copy(B, (24, 5, 4), (16, 3, 3), (8, 3, 2), "32b"),
    Copy("uint16", (24, 5, 4, 3), (32, 2, 2, 2), (8, 4, 1, 2), "64b"),
    Copy("uint32", (12, 3, 3, 3, 3), (8, 2, 2, 2, 2), (4, 2, 1, 2, 1), "32b"),
)
REDUCTIONS = (
    *[("add", t) for t in ("uint32", "int32", "uint64", "float32", "float16", B)],
    *[(op, t) for op in ("min", "max") for t in ("uint32", "int32", "uint64", "int64", "float16", B)],
    *[(op, t) for op in ("and", "or", "xor") for t in ("uint32", "uint64")],
    *[(op, "uint32") for op in ("inc", "dec")],
)


def cases() -> Iterator[Case]:
    source = PRELUDE + "".join(map(load_kernel, range(1, 6)))
    for number, copy in enumerate(LOADS):
        yield load_case(source, copy, number)
    store_source = PRELUDE + "".join(store_kernel(rank, "") for rank in range(1, 6))
    for number, copy in enumerate(STORES):
        yield store_case(store_source, copy, number)
    reduce_source = PRELUDE + "".join(store_kernel(2, op) for op in sorted({op for op, _ in REDUCTIONS}))
    for operation, dtype in REDUCTIONS:
        yield _reduce(reduce_source, operation, dtype)


def _coordinates(rank: int) -> str:
    return ", ".join(f"int c{i}" for i in range(rank))


def load_kernel(rank: int) -> str:
    slots = ", ".join(f"%{i + 3}" for i in range(rank))
    inputs = ", ".join(f'"r"(c{i})' for i in range(rank))
    return f"""
extern "C" __global__ void load_{rank}d(const u8* tensor, u32* to, const __grid_constant__ TensorMap map, u32 words,
                                        u32 shared_offset, u32 box_bytes, {_coordinates(rank)}) {{
  u32 bar = address(smem) + 4 * words;
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) ((u32*)smem)[i] = 0xeeeeeeee;
  if (threadIdx.x == 0) barrier_init(bar, 1);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {{
    barrier_expect(bar, box_bytes);
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {{{slots}}}], [%2];" ::"r"(address(smem) + shared_offset), "l"(address(map)), "r"(bar),
                 {inputs} : "memory");
  }}
  barrier_wait(bar, 0);
  copy_out(to, words);
}}
"""


def _tensor(copy: Copy, rng: np.random.Generator) -> Array:
    octets = rng.integers(0, 256, copy.tensor_bytes, dtype=np.uint8)
    if copy.dtype in CHANGED:  # make ties, subnormals and NaN frequent
        words = octets.view(np.uint32)
        words[::3] &= 0xFFFFF000
        words[::7] &= 0x807FFFFF
        words[5::31] = (0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF)[len(words) % 4]
    return octets


def _title(copy: Copy, number: int) -> str:
    shape = "x".join(map(str, copy.box))
    return f"{number:02d} {copy.dtype} box {shape} at {','.join(map(str, copy.coords))} {copy.swizzle}"


def _trailing(copy: Copy) -> tuple[Scalar, ...]:
    return tuple(map(Scalar.u32, (copy.shared_bytes // 4, copy.shared_offset, copy.box_bytes, *copy.coords)))


def load_case(source: str, copy: Copy, number: int) -> Case:
    name = f"load {_title(copy, number)}"
    tensor, size = _tensor(copy, generator(name)), SIZES[copy.dtype]
    shared = np.full(copy.shared_bytes, 0xEE, dtype=np.uint8)
    loaded = tf32_nearest(tensor.view(np.float32)).view(np.uint8) if "tfloat32" in copy.dtype else tensor
    for at, place, inside in copy.elements():
        shared[at : at + size] = loaded[place : place + size] if inside else copy.filler
    plain = copy.fill == "zero" and copy.dtype not in CHANGED
    return Case(
        family="TMA load" if plain else "TMA load, values",
        name=name,
        source=source,
        kernel=f"load_{len(copy.dims)}d",
        parameters=(In(tensor), out(copy.shared_bytes // 4), copy.map_of(0), *_trailing(copy)),
        block=(64, 1, 1),
        shared_bytes=copy.shared_bytes + BEHIND,
        expected=(shared.view(np.uint32),),
    )


def store_kernel(rank: int, operation: str) -> str:
    slots = ", ".join(f"%{i + 2}" for i in range(rank))
    inputs = ", ".join(f'"r"(c{i})' for i in range(rank))
    opcode = f"cp.reduce.async.bulk.tensor.{rank}d" if operation else f"cp.async.bulk.tensor.{rank}d"
    suffix = f".{operation}.tile.bulk_group" if operation else ".bulk_group"
    return f"""
extern "C" __global__ void {operation or "store"}_{rank}d(u8* tensor, const u32* image,
    const __grid_constant__ TensorMap map, u32 words, u32 shared_offset, u32 box_bytes, {_coordinates(rank)}) {{
  copy_in(image, words);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {{
    asm volatile("{opcode}.global.shared::cta{suffix} [%0, {{{slots}}}], [%1];"
                 ::"l"(address(map)), "r"(address(smem) + shared_offset), {inputs} : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}
}}
"""


def store_case(source: str, copy: Copy, number: int) -> Case:
    name = f"store {_title(copy, number)}"
    rng, size = generator(name), SIZES[copy.dtype]
    tensor = rng.integers(0, 256, copy.tensor_bytes, dtype=np.uint8)
    image = rng.integers(0, 256, copy.shared_bytes, dtype=np.uint8)
    expected = tensor.copy()
    for at, place, inside in copy.elements(whole_chunks=True):
        if inside:
            expected[place : place + size] = image[at : at + size]
    return Case(
        family="TMA store",
        name=name,
        source=source,
        kernel=f"store_{len(copy.dims)}d",
        parameters=(Out(tensor), In(image), copy.map_of(0), *_trailing(copy)),
        block=(64, 1, 1),
        shared_bytes=copy.shared_bytes + BEHIND,
        expected=(expected,),
    )


# reductions

ARRAYS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def _values(dtype: str, count: int, rng: np.random.Generator) -> Array:
    if dtype in ARRAYS:
        return (rng.standard_normal(count) * 2.0 ** rng.integers(-8, 8, count)).astype(ARRAYS[dtype])
    octets = rng.integers(0, 256, count * SIZES[dtype], dtype=np.uint8).view(dtype)
    return np.where(rng.random(count) < 0.5, octets, octets % 10).astype(dtype)


def _reduced(operation: str, old: Array, new: Array) -> Array:
    """Half-precision sums through float64: one rounding."""
    if operation == "inc":
        return np.where(old >= new, 0, old + 1).astype(old.dtype)
    if operation == "dec":
        return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
    names = {"add": np.add, "min": np.minimum, "max": np.maximum}
    combine = names.get(operation) or getattr(np, f"bitwise_{operation}")
    if old.dtype.itemsize == 2:
        return combine(old.astype(np.float64), new.astype(np.float64)).astype(old.dtype)
    return combine(old, new)


def _reduce(source: str, operation: str, dtype: str) -> Case:
    name = f"reduce {operation} {dtype}"
    rng, size = generator(name), SIZES[dtype]
    copy = Copy(dtype, (48 // size * 4, 20), (64 // size, 8), (32 // size, 15), "64b")
    tensor = _values(dtype, copy.tensor_bytes // size, rng)
    image = np.zeros(copy.shared_bytes, np.uint8)
    image[:512] = _values(dtype, 512 // size, rng).view(np.uint8)
    expected = tensor.copy()
    for at, place, inside in copy.elements():
        if inside:
            one = slice(place // size, place // size + 1)
            expected[one] = _reduced(operation, tensor[one], image[at : at + size].view(tensor.dtype))
    return Case(
        family=f"TMA reduce {operation}",
        name=name,
        source=source,
        kernel=f"{operation}_2d",
        parameters=(Out(tensor), In(image), copy.map_of(0), *_trailing(copy)),
        block=(64, 1, 1),
        shared_bytes=copy.shared_bytes + BEHIND,
        expected=(expected,),
    )
