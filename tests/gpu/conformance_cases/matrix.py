"""ldmatrix, stmatrix, movmatrix and mma.sync, with fragment positions written out as the PTX ISA gives them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np

from .case import PRELUDE, Array, Case, In, generator, out

LANE = np.arange(32)


def cases() -> Iterator[Case]:
    source = PRELUDE + MOVMATRIX + "".join(_matrix_kernels(n, trans) for n, trans in product((1, 2, 4), (False, True)))
    for count, trans in product((1, 2, 4), (False, True)):
        yield _ldmatrix(source, count, trans)
        yield _stmatrix(source, count, trans)
    yield _movmatrix(source)
    mma_source = PRELUDE + "".join(_mma_kernel(shape) for shape in SHAPES)
    for shape in SHAPES:
        yield _mma(mma_source, shape)


# 8x8 matrices of 16 bits: lane t holds row t / 4, columns 2 (t % 4) and the next; transposed, the columns are rows

# every row lies at its own place, not in lane order, with room between rows
ROW_PITCH = 48


def _row_of_lane(lane: Array) -> Array:
    return (lane * 5 + 3) % 32


def _matrix_kernels(count: int, trans: bool) -> str:
    suffix = f"x{count}{'_trans' if trans else ''}"
    modifier = f"m8n8.x{count}{'.trans' if trans else ''}.shared.b16"
    slots = ", ".join(f"%{i}" for i in range(count))
    loaded = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    stored = ", ".join(f'"r"(r[{i}])' for i in range(count))
    store_slots = ", ".join(f"%{i + 1}" for i in range(count))
    return f"""
extern "C" __global__ void ldmatrix_{suffix}(const u32* in, u32* to) {{
  copy_in(in, {8 * ROW_PITCH});
  __syncwarp();
  u32 lane = threadIdx.x, from = address(smem) + ((lane * 5 + 3) % 32) * {ROW_PITCH}, r[{count}];
  asm volatile("ldmatrix.sync.aligned.{modifier} {{{slots}}}, [%{count}];" : {loaded} : "r"(from) : "memory");
  for (u32 i = 0; i < {count}; ++i) to[i * 32 + lane] = r[i];
}}
extern "C" __global__ void stmatrix_{suffix}(const u32* in, u32* to) {{
  u32 lane = threadIdx.x, at = address(smem) + ((lane * 5 + 3) % 32) * {ROW_PITCH}, r[{count}];
  for (u32 i = lane; i < {8 * ROW_PITCH}; i += 32) ((u32*)smem)[i] = 0;
  __syncwarp();
  for (u32 i = 0; i < {count}; ++i) r[i] = in[i * 32 + lane];
  asm volatile("stmatrix.sync.aligned.{modifier} [%0], {{{store_slots}}};" ::"r"(at), {stored} : "memory");
  __syncwarp();
  copy_out(to, {8 * ROW_PITCH});
}}
"""


def _positions(count: int, trans: bool) -> tuple[Array, Array]:
    """Row (0 to 8 * count - 1) and column of every [register, lane, half]."""
    register, lane, half = np.indices((count, 32, 2))
    across, along = 2 * (lane % 4) + half, lane // 4
    return 8 * register + (across if trans else along), along if trans else across


def _ldmatrix(source: str, count: int, trans: bool) -> Case:
    name = f"ldmatrix_x{count}{'_trans' if trans else ''}"
    memory = generator(name).integers(0, 1 << 16, 16 * ROW_PITCH, dtype=np.uint16)
    row, col = _positions(count, trans)
    halves = memory[_row_of_lane(row) * (ROW_PITCH // 2) + col]
    return Case(
        family="ldmatrix",
        name=name,
        source=source,
        kernel=name,
        parameters=(In(memory.view(np.uint32)), out((count, 32))),
        shared_bytes=32 * ROW_PITCH,
        expected=(np.ascontiguousarray(halves).view(np.uint32).reshape(count, 32),),
    )


def _stmatrix(source: str, count: int, trans: bool) -> Case:
    name = f"stmatrix_x{count}{'_trans' if trans else ''}"
    registers = generator(name).integers(0, 1 << 32, (count, 32), dtype=np.uint32)
    row, col = _positions(count, trans)
    memory = np.zeros(16 * ROW_PITCH, dtype=np.uint16)
    memory[_row_of_lane(row) * (ROW_PITCH // 2) + col] = registers.view(np.uint16).reshape(count, 32, 2)
    return Case(
        family="stmatrix",
        name=name,
        source=source,
        kernel=name,
        parameters=(In(registers), out(8 * ROW_PITCH)),
        shared_bytes=32 * ROW_PITCH,
        expected=(memory.view(np.uint32),),
    )


MOVMATRIX = r"""
extern "C" __global__ void movmatrix(const u32* in, u32* to) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(in[threadIdx.x]));
  to[threadIdx.x] = r;
}
"""


def _movmatrix(source: str) -> Case:
    register = generator("movmatrix").integers(0, 1 << 32, 32, dtype=np.uint32)
    transposed = np.ascontiguousarray(register.view(np.uint16).reshape(8, 8).T).view(np.uint32).reshape(32)
    return Case("movmatrix", "movmatrix", source, "movmatrix", (In(register), out(32)), expected=(transposed,))


# mma.sync: (PTX shape, type of D and C, type of A, type of B)

SHAPES = (
    ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k16", "f32", "f16", "f16"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "bf16", "bf16"),
    ("m16n8k8", "f32", "f16", "f16"),
    ("m16n8k8", "f32", "tf32", "tf32"),
    ("m16n8k4", "f32", "tf32", "tf32"),
    ("m16n8k32", "f32", "e4m3", "e4m3"),
    ("m16n8k32", "f32", "e5m2", "e5m2"),
    ("m16n8k32", "f32", "e4m3", "e5m2"),
    ("m16n8k32", "f32", "e5m2", "e4m3"),
)
Shape = tuple[str, str, str, str]
BITS = {"bf16": 16, "f16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8}
NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def _k(shape: Shape) -> int:
    return int(shape[0].split("k")[1])


def _register_counts(shape: Shape) -> tuple[int, int, int]:
    """Registers of A, B and C."""
    b = _k(shape) * BITS[shape[2]] // 128
    return 2 * b, b, 4 if shape[1] == "f32" else 2


def _mma_name(shape: Shape) -> str:
    return f"mma_{shape[0]}_{shape[1]}_{shape[2]}_{shape[3]}"


def _mma_kernel(shape: Shape) -> str:
    a, b, c = _register_counts(shape)
    kind, (size, acc, a_type, b_type) = "f" if shape[1] == "f32" else "r", shape
    slots = [f"%{i}" for i in range(2 * c + a + b)]
    texts = ", ".join(
        "{" + ", ".join(part) + "}" for part in (slots[:c], slots[c:][:a], slots[c + a :][:b], slots[-c:])
    )
    inputs = [f'"r"(a[{i}])' for i in range(a)] + [f'"r"(b[{i}])' for i in range(b)]
    inputs += [f'"{kind}"(c[{i}])' for i in range(c)]
    outputs = ", ".join(f'"={kind}"(d[{i}])' for i in range(c))
    number = "float" if kind == "f" else "u32"
    return f"""
extern "C" __global__ void {_mma_name(shape)}(const u32* a_in, const u32* b_in, const {number}* c_in, {number}* to) {{
  u32 a[{a}], b[{b}];
  {number} c[{c}], d[{c}];
  for (u32 i = 0; i < {a}; ++i) a[i] = a_in[i * 32 + threadIdx.x];
  for (u32 i = 0; i < {b}; ++i) b[i] = b_in[i * 32 + threadIdx.x];
  for (u32 i = 0; i < {c}; ++i) c[i] = c_in[i * 32 + threadIdx.x];
  asm volatile("mma.sync.aligned.{size}.row.col.{acc}.{a_type}.{b_type}.{acc} {texts};"
               : {outputs} : {", ".join(inputs)});
  for (u32 i = 0; i < {c}; ++i) to[i * 32 + threadIdx.x] = d[i];
}}
"""


def integers(rng: np.random.Generator, shape: tuple[int, ...], fmt: str, limit: int = 12) -> Array:
    """Small integers, so that every product and sum is exact; e5m2 holds those up to 8, f16 sums those up to 2048."""
    limit = min(limit, {"e4m3": 8, "e5m2": 4}.get(fmt, 12))
    return rng.integers(-limit, limit + 1, shape).astype(NUMPY[fmt])


def _fragment(matrix: Array, row: Array, col: Array) -> Array:
    """Registers [n, 32] that hold matrix[row, col], both [n, 32, elements of a register]."""
    return np.ascontiguousarray(matrix[row, col]).view(np.uint32).reshape(-1, 32)


def _a_positions(registers: int, per: int) -> tuple[Array, Array]:
    r, t, e = np.indices((registers, 32, per))
    return t // 4 + 8 * (r % 2), 4 * per * (r // 2) + per * (t % 4) + e


def _b_positions(registers: int, per: int) -> tuple[Array, Array]:
    r, t, e = np.indices((registers, 32, per))
    return 4 * per * r + per * (t % 4) + e, t // 4


def _c_positions(registers: int, per: int) -> tuple[Array, Array]:
    r, t, e = np.indices((registers, 32, per))
    value = per * r + e
    return t // 4 + 8 * (value // 2), 2 * (t % 4) + value % 2


def _mma(source: str, shape: Shape) -> Case:
    name, (a_regs, b_regs, c_regs) = _mma_name(shape), _register_counts(shape)
    rng, k = generator(name), _k(shape)
    limit = 3 if shape[1] == "f16" else 12
    a, b = integers(rng, (16, k), shape[2], limit), integers(rng, (k, 8), shape[3], limit)
    c = rng.integers(-50, 51, (16, 8)).astype(NUMPY[shape[1]])
    d = (a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)).astype(NUMPY[shape[1]])
    per, c_per = 32 // BITS[shape[2]], 32 // BITS[shape[1]]
    held = [
        _fragment(a, *_a_positions(a_regs, per)),
        _fragment(b, *_b_positions(b_regs, per)),
        _fragment(c, *_c_positions(c_regs, c_per)),
    ]
    expected = _fragment(d, *_c_positions(c_regs, c_per))
    return Case("mma.sync", name, source, name, (*map(In, held), out((c_regs, 32))), expected=(expected,))
