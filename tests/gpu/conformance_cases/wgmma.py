"""wgmma.mma_async: the host lays the operand tiles out in shared memory byte by byte, the kernel multiplies them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .case import PRELUDE, Array, Case, In, Scalar, generator, out
from .matrix import BITS, NUMPY, integers

SPAN = {"none": 16, "32b": 32, "64b": 64, "128b": 128}
LAYOUT_TYPE = {"none": 0, "128b": 1, "64b": 2, "32b": 3}
B_OFFSET = 32768  # where B's tile starts; A's starts at 0


@dataclass(frozen=True)
class Form:
    """One wgmma: N, element types, where A comes from, majors, swizzle, and the accumulator."""

    n: int
    a: str = "bf16"
    b: str = "bf16"
    a_registers: bool = False
    a_major: str = "k"
    b_major: str = "k"
    swizzle: str = "128b"
    d: str = "f32"
    scale_d: int = 1
    scale_a: int = 1
    scale_b: int = 1

    @property
    def name(self) -> str:
        a = "reg" if self.a_registers else self.a_major
        signs = "".join(str(x).replace("-", "m") for x in (self.scale_d, self.scale_a, self.scale_b))
        return f"wgmma_n{self.n}_{self.d}_{self.a}_{self.b}_{a}_{self.b_major}_{self.swizzle}_{signs}"

    @property
    def elem_bytes(self) -> int:
        return BITS[self.a] // 8

    @property
    def k_step(self) -> int:
        """k of one instruction: 32 bytes."""
        return 32 // self.elem_bytes

    @property
    def k(self) -> int:
        """k of the tile: one swizzled row where k is contiguous, else two instructions."""
        k_contiguous = "k" in (self.a_major, self.b_major) and self.swizzle != "none"
        return (SPAN[self.swizzle] if k_contiguous else 64) // self.elem_bytes


FORMS = (
    *[Form(n) for n in (8, 16, 24, 64, 96, 128, 248, 256)],
    *[Form(64, swizzle=s) for s in ("64b", "32b", "none")],
    Form(64, scale_d=0),
    Form(64, scale_a=-1),
    Form(64, scale_b=-1),
    *[Form(64, a_major=a, b_major=b) for a, b in (("mn", "k"), ("k", "mn"), ("mn", "mn"))],
    *[Form(n, a_major="mn", b_major="mn") for n in (16, 128, 256)],
    *[Form(64, a_major="mn", b_major="mn", swizzle=s) for s in ("64b", "32b", "none")],
    *[Form(n, a_registers=True) for n in (8, 64, 128)],
    Form(64, a_registers=True, b_major="mn"),
    Form(64, "f16", "f16"),
    Form(64, "f16", "f16", d="f16"),
    *[Form(n, "e4m3", "e4m3") for n in (8, 64, 96, 128, 256)],
    *[Form(64, "e4m3", "e4m3", swizzle=s) for s in ("64b", "32b", "none")],
    Form(64, "e5m2", "e4m3"),
    Form(64, "e4m3", "e5m2"),
    *[Form(n, "e4m3", "e4m3", a_registers=True) for n in (16, 128)],
    *[Form(n, "tf32", "tf32") for n in (8, 64)],
    *[Form(n, "tf32", "tf32", a_registers=True) for n in (8, 24, 64, 128)],
)


def cases() -> Iterator[Case]:
    for part in range(0, len(FORMS), 8):  # a few kernels in one compilation
        forms = FORMS[part : part + 8]
        source = PRELUDE + "".join(_kernel(form) for form in forms)
        for form in forms:
            yield _case(source, form)


# where the bytes lie


def _tile_offsets(rows: int, k: int, form: Form, major: str) -> Array:
    """Byte offset of every element [rows, k] of a tile that starts at a multiple of 1024."""
    span, size = SPAN[form.swizzle], form.elem_bytes
    row, col = np.indices((rows, k))
    if major == "k":  # 8-row groups of span bytes a row; without swizzle 16-byte columns follow each other
        byte = col * size
        offset = row // 8 * _group_stride(form, k, major) + row % 8 * span + byte // span * 128 + byte % span
    else:  # atoms of span bytes along mn and 8 k; all k of an atom column follow each other
        byte = row * size
        offset = byte // span * (k * span) + col * span + byte % span
    return offset ^ (offset >> 7) % (span // 16) << 4


def _group_stride(form: Form, k: int, major: str) -> int:
    """Bytes between 8-row groups of a K-major tile."""
    span = SPAN[form.swizzle]
    return 8 * span if form.swizzle != "none" else 8 * k * form.elem_bytes


def _descriptor_fields(form: Form, major: str) -> tuple[int, int, int]:
    """Leading byte offset, stride byte offset, bytes the start address advances by per instruction."""
    span = SPAN[form.swizzle]
    if major == "k":
        leading, advance = (128, 256) if form.swizzle == "none" else (16, 32)
        return leading, _group_stride(form, form.k, major), advance
    atom_column = form.k * span  # bytes from one atom to the next along mn
    advance = form.k_step * span
    return (8 * span, atom_column, advance) if form.swizzle == "none" else (atom_column, 8 * span, advance)


# kernel


def _descriptor(form: Form, major: str, base: str) -> str:
    leading, stride, advance = _descriptor_fields(form, major)
    high = LAYOUT_TYPE[form.swizzle] << 62 | (stride >> 4) << 32 | (leading >> 4) << 16
    return f"({high:#x}ull | (u64)((({base} + step * {advance}) & 0x3ffff) >> 4))"


def _kernel(form: Form) -> str:
    count = form.n // 2 if form.d == "f32" else form.n // 4
    kind, number = ("f", "float") if form.d == "f32" else ("r", "u32")
    slots = ", ".join(f"%{i}" for i in range(count))
    a_slots = 4 if form.a_registers else 1
    a_text = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if form.a_registers else f"%{count}"
    majors = f", {int(form.a_major == 'mn')}" if not form.a_registers else ""
    majors = majors + f", {int(form.b_major == 'mn')}" if form.elem_bytes == 2 else ""
    a_input = ", ".join(f'"r"(a[step * 4 + {i}])' for i in range(4)) if form.a_registers else '"l"(a_desc)'
    steps = form.k // form.k_step
    load_a = f"u32 a[{4 * steps}]; for (u32 i = 0; i < {4 * steps}; ++i) a[i] = a_in[i * 128 + threadIdx.x];"
    a_desc = "" if form.a_registers else f'u64 a_desc = {_descriptor(form, form.a_major, "base")};'
    instruction = f"wgmma.mma_async.sync.aligned.m64n{form.n}k{form.k_step}.{form.d}.{form.a}.{form.b}"
    outputs = ", ".join(f'"+{kind}"(d[{i}])' for i in range(count))
    return f"""
extern "C" __global__ __launch_bounds__(128) void {form.name}(const u32* image, const u32* a_in, const {number}* c_in,
                                                              {number}* to, u32 scale_d) {{
  copy_in(image, {_image_bytes(form) // 4});
  {number} d[{count}];
  for (u32 i = 0; i < {count}; ++i) d[i] = c_in[i * 128 + threadIdx.x];
  {load_a if form.a_registers else ""}
  fence_async();
  __syncthreads();
  u32 base = address(smem);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (u32 step = 0; step < {steps}; ++step) {{
    {a_desc}
    u64 b_desc = {_descriptor(form, form.b_major, f"base + {B_OFFSET}")};
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + a_slots + 1}, 0; {instruction} {{{slots}}}, {a_text}, "
                 "%{count + a_slots}, p, {form.scale_a}, {form.scale_b}{majors}; }}"
                 : {outputs} : {a_input}, "l"(b_desc), "r"(step == 0 ? scale_d : 1) : "memory");
  }}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (u32 i = 0; i < {count}; ++i) to[i * 128 + threadIdx.x] = d[i];
}}
"""


def _image_bytes(form: Form) -> int:
    return B_OFFSET + form.n * form.k * form.elem_bytes + (8192 if form.b_major == "mn" else 0)


# inputs and expectation


def _case(source: str, form: Form) -> Case:
    rng = generator(form.name)
    limit = 3 if form.d == "f16" else 12
    a, b = integers(rng, (64, form.k), form.a, limit), integers(rng, (form.n, form.k), form.b, limit)
    c = rng.integers(-50, 51, (64, form.n)).astype(NUMPY[form.d])
    product = form.scale_a * form.scale_b * (a.astype(np.float64) @ b.astype(np.float64).T)
    d = (product + form.scale_d * c.astype(np.float64)).astype(NUMPY[form.d])
    parameters = (
        In(_image(form, a, b)),
        In(_a_registers(form, a) if form.a_registers else np.zeros(4, np.uint32)),
        In(_accumulator(c)),
        out(_accumulator(d).shape),
    )
    return Case(
        family=f"wgmma {form.a}" + (" A in registers" if form.a_registers else ""),
        name=form.name,
        source=source,
        kernel=form.name,
        parameters=(*parameters, Scalar.u32(form.scale_d)),
        block=(128, 1, 1),
        shared_bytes=_image_bytes(form),
        expected=(_accumulator(d),),
    )


def _image(form: Form, a: Array, b: Array) -> Array:
    """Shared memory with both tiles; what no tile covers holds 0xFF, a NaN in most formats."""
    image = np.full(_image_bytes(form), 0xFF, np.uint8)
    for base, matrix, major in ((0, a, form.a_major), (B_OFFSET, b, form.b_major)):
        if base == 0 and form.a_registers:
            continue
        offsets = base + _tile_offsets(*matrix.shape, form, major)
        octets = np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, -1)
        for i in range(form.elem_bytes):
            image[offsets + i] = octets[..., i]
    return image.view(np.uint32)


def _a_registers(form: Form, a: Array) -> Array:
    """A of every step as registers [4 * steps, 128 threads]."""
    per = 4 // form.elem_bytes
    r, t, e = np.indices((4, 128, per))
    row, col = 16 * (t // 32) + t % 32 // 4 + 8 * (r % 2), 4 * per * (r // 2) + per * (t % 4) + e
    steps = [np.ascontiguousarray(a[row, s + col]).view(np.uint32) for s in range(0, form.k, form.k_step)]
    return np.concatenate(steps).reshape(-1, 128)


def _accumulator(d: Array) -> Array:
    """D as registers [registers, 128 threads] of 32 bits."""
    per = 4 // d.itemsize
    r, t, e = np.indices((d.shape[1] // (2 * per), 128, per))
    value = per * r + e
    row, col = 16 * (t // 32) + t % 32 // 4 + 8 * (value // 2 % 2), 8 * (value // 4) + 2 * (t % 4) + value % 2
    return np.ascontiguousarray(d[row, col]).view(np.uint32).reshape(-1, 128)
