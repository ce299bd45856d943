"""Launches in which each reads what the one before it wrote, for kernels that start early; on a GPU or the simulator.

Weights are constant, which is what early launches ask for. Whatever a link writes, the next link's A and its scales, is
NaN before the chain begins, so that a kernel which reads it too soon shows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch

import gemmgen
from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ir import KernelSpec
from gemmgen.ops.kernels import Kernel
from gemmgen.runtime.gpu_target import GpuTarget
from gemmgen.runtime.kernel_text import KernelText

EARLY = (
    "sm90_fp8_gemm_nt_bf16_64x64_s8_x2",
    "sm90_fp8_gemm_nt_bf16_128x64_s6",
    "sm90_fp8_gemm_nt_bf16_64x96_s3",
    "sm90_fp8_gemm_nt_bf16_32x32_s1_x2",
    "sm90_fp8_gemm_nt_bf16_8x128_swap_s4_x2",
    "sm90_fp8_gemm_nt_bf16_16x128_swap_s1_x2",
    "sm90_fp8_gemm_nt_bf16_24x64_swap_s8_x2",
    "sm90_fp8_gemm_nt_bf16_40x128_swap_s2",
    "sm90_bf16_gemm_nt_bf16_64x64_s8_x2",
    "sm90_bf16_gemm_nt_bf16_128x96_s4",
    "sm90_bf16_gemm_nt_bf16_16x32_s2_x2",
    "sm90_bf16_gemm_nt_bf16_8x128_swap_s1",
    "sm90_bf16_gemm_nt_bf16_8x64_swap_s8_x2",
    "sm90_bf16_gemm_nt_bf16_40x128_swap_s8",
)
"""Kernels that read weights ahead: CTAs that share K and those that do not, swapped and not, one and two an SM."""
LATE = (
    "sm90_fp8_gemm_nt_bf16_128x192_cut3",
    "sm90_fp8_gemm_nt_bf16_128x128_share",
    "sm90_bf16_gemm_nt_bf16_16x128_swap_x2",
    "sm90_bf16_gemm_nt_bf16_72x192_swap_share",
)
"""Kernels that start early and read nothing before they waited."""
HASTY = ("sm90_fp8_gemm_nt_bf16_64x64_s8_x2", "sm90_bf16_gemm_nt_bf16_8x128_swap_s1")
"""Those that are also tried without their wait."""
WAIT = "ptx::wait_for_prerequisites();"
SIZE = 1280
"""n and k: ten K blocks, of which eight CTAs have one or two."""
PAST = 5
"""Rows in the second tile of each kernel."""
ALIGNED = 128
"""Bytes that scales start at multiples of."""
POISON = 0xFF
"""Every byte of a NaN: in bf16, e4m3 and fp32."""
PRODUCER = catalog.launched_early(catalog.fp8_output("m").of(catalog.fp8_gemm_nt(Shape(128, 128, unroll=1, splits=1))))
"""Writes e4m3 and scales as FP8 kernels read them; it lets the next kernel start before it has read anything."""


def early(name: str) -> KernelSpec:
    """A shipped kernel as it is launched early."""
    return catalog.launched_early(catalog.specs()[name])


def is_fp8(spec: KernelSpec) -> bool:
    """Whether it takes scales."""
    return any(each.name == "sfa" for each in spec.operands)


# ------------------------------------------------------------------------------------------------ operands


@dataclass(frozen=True)
class Left:
    """A of a product, with scales in FP8, all in one stretch of memory, so that one copy writes it."""

    room: torch.Tensor
    a: torch.Tensor
    sfa: torch.Tensor | None

    @classmethod
    def empty(cls, spec: KernelSpec, rows: int, length: int, device: str) -> Left:
        """Full of NaN."""
        dtype = torch.float8_e4m3fn if is_fp8(spec) else torch.bfloat16
        size, blocks, pitch = rows * length * dtype.itemsize, -(-length // 128), -(-rows // 4) * 4
        scales = blocks * pitch * 4 if is_fp8(spec) else 0
        behind = -(-size // ALIGNED) * ALIGNED
        room = torch.full((behind + scales,), POISON, dtype=torch.uint8, device=device)
        sfa = room[behind:].view(torch.float32).view(blocks, pitch)[:, :rows].T if scales else None
        return cls(room, room[:size].view(dtype).view(rows, length), sfa)

    @classmethod
    def random(cls, spec: KernelSpec, rows: int, length: int, device: str) -> Left:
        """Normal data; scales that are no powers of two."""
        found = cls.empty(spec, rows, length, device)
        found.a.copy_(torch.randn(rows, length, device=device).to(found.a.dtype))
        if found.sfa is not None:
            found.sfa.copy_(torch.rand(found.sfa.shape, device=device) + 0.5)
        return found

    @property
    def operands(self) -> dict[str, torch.Tensor]:
        return {"a": self.a} | ({} if self.sfa is None else {"sfa": self.sfa})


def weights(spec: KernelSpec, columns: int, length: int, device: str) -> dict[str, torch.Tensor]:
    """B of about the length of A's rows, so that the numbers of a chain keep their size."""
    values = torch.randn(columns, length, device=device)
    if not is_fp8(spec):
        return {"b": (values / length**0.5).bfloat16()}
    scales = (torch.rand(-(-columns // 128), -(-length // 128), device=device) + 0.5) / length**0.5
    return {"b": values.to(torch.float8_e4m3fn), "sfb": scales}


# ------------------------------------------------------------------------------------------------ links


@dataclass(frozen=True)
class Chain:
    """Calls in order, the first A, everything that they write, and the last output."""

    calls: Sequence[Callable[[], object]]
    start: torch.Tensor
    first: torch.Tensor
    written: Sequence[torch.Tensor]
    last: torch.Tensor

    def poison(self) -> None:
        """Nothing is written yet."""
        for each in self.written:
            each.view(torch.uint8).fill_(POISON)
        self.first.copy_(self.start)

    def results(self) -> list[torch.Tensor]:
        """The bytes of everything."""
        return [each.view(torch.uint8).clone() for each in self.written]


def chain(name: str, links: int, device: str, size: int = SIZE) -> Chain:
    """Links of one kernel; in FP8 another one before each makes its A and scales, from what that one made before."""
    spec = early(name)
    rows = spec.tile.m + PAST
    steps = [Left.empty(spec, rows, size, device) for _ in range(links + 1)]
    start = Left.random(spec, rows, size, device).room
    if not is_fp8(spec):
        given, op = weights(spec, size, size, device), gemmgen.op(spec)
        calls = [partial(op, **here.operands, **given, d=there.a) for here, there in pairwise(steps)]
        return Chain(calls, start, steps[0].room, [each.room for each in steps[1:]], steps[-1].a)
    outputs = [torch.empty(rows, size, dtype=torch.bfloat16, device=device) for _ in range(links)]
    calls = _fp8_links(spec, steps, outputs, size, device)
    return Chain(calls, start, steps[0].room, [*(each.room for each in steps[1:]), *outputs], outputs[-1])


def _fp8_links(
    spec: KernelSpec, steps: Sequence[Left], outputs: Sequence[torch.Tensor], size: int, device: str
) -> list[Callable[[], object]]:
    produce, op = gemmgen.op(PRODUCER), gemmgen.op(spec)
    through, given = (weights(spec, size, size, device) for _ in range(2))
    calls: list[Callable[[], object]] = []
    for (here, there), d in zip(pairwise(steps), outputs, strict=True):
        calls.append(partial(produce, **here.operands, **through, d_fp8=there.a, d_sf=there.sfa))
        calls.append(partial(op, **there.operands, **given, d=d))
    return calls


# ------------------------------------------------------------------------------------------------ a slow writer

SLOW = """\
struct Params {
  const unsigned* from;
  unsigned* to;
  unsigned long long words;
  unsigned long long nanoseconds;
};

extern "C" __global__ void __launch_bounds__(256) slow_copy(const __grid_constant__ Params p) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < p.nanoseconds);
  for (unsigned long long i = blockIdx.x * 256 + threadIdx.x; i < p.words; i += gridDim.x * 256) p.to[i] = p.from[i];
}
"""
CTAS = 8
"""Few, so that the next kernel finds free SMs at once."""


def slow_kernel() -> KernelText:
    """Lets the next kernel start at once, and writes only a while later."""
    return KernelText(SLOW, "slow_copy", "sm90", threads=256, shared_bytes=0)


def without_waits(kernel: Kernel) -> Kernel:
    """A kernel that takes what it reads for there."""
    text = kernel.text
    assert WAIT in text.source
    return replace(kernel, text=replace(text, source=text.source.replace(WAIT, "")))


def slow_copy(target: GpuTarget, source: torch.Tensor, to: torch.Tensor, nanoseconds: int) -> None:
    """Launch it; both are whole words of bytes in one stretch."""
    words = source.numel() * source.element_size() // 4
    assert words * 4 == to.numel() * to.element_size() and source.is_contiguous() and to.is_contiguous()
    params = struct.pack("<QQQQ", source.data_ptr(), to.data_ptr(), words, nanoseconds)
    target.launch(target.load(slow_kernel()), (CTAS, 1, 1), params, target.current_stream())
