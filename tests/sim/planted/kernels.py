"""The kernels that mistakes are planted in: catalog specs with shallow rings, problems small enough to run in a moment.

Inputs are small integers and powers of two, so that every sum is exact and a single wrong bit of the output shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import reference
import torch
from reduced import reduced, reducing

from gemmgen import sim
from gemmgen.catalog import (
    PrenormShape,
    Shape,
    WarpShape,
    bf16_gemm,
    dense_sm100,
    dense_sm120,
    fp8_gemm_nt,
    tf32_hc_prenorm_gemm,
)
from gemmgen.catalog.dense_sm100 import Factor, PairShape, scaled_gemm_nt
from gemmgen.ir import Arch, DType, KernelSpec, Plan, Reduce, SumOfSquares, is_counter
from gemmgen.ops.block import whole_block
from gemmgen.ops.dispatch import encoder
from gemmgen.ops.kernels import Kernel, kernel_of
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.arguments import Problem, TensorView, grid_size, in_use, with_splits, workspace_bytes
from gemmgen.runtime.compiler import cached_ptx
from gemmgen.runtime.sim_target import SimKernel, SimTarget
from gemmgen.runtime.simulation import Simulation

from .inputs import exact, laid_out

Timing = tuple[str, int]
"""A schedule and its seed."""


SCALAR = 0.5
"""What every host scalar is."""


class WrongResult(Exception):
    """The kernel ended and its output differs from the exact one."""


@dataclass(frozen=True)
class Subject:
    """A spec, a problem and the SMs that share its tiles; few SMs make one CTA walk several tiles."""

    spec: KernelSpec
    m: int
    n: int
    k: int
    sms: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        return {"m": self.m, "n": self.n, "k": self.k}

    @cached_property
    def kernel(self) -> Kernel:
        return kernel_of(self.spec)

    @property
    def plan(self) -> Plan:
        return self.kernel.plan

    @cached_property
    def ptx(self) -> str:
        """What NVRTC makes of the spec, and what is shipped."""
        text = self.kernel.text
        return cached_ptx(text.source, text.arch, text.file_name).text

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        tensors = [each for each in self.spec.operands if each not in self.spec.outputs and not each.is_scalar]
        return {each.name: exact(each, self.sizes) for each in tensors}

    @cached_property
    def expected(self) -> torch.Tensor:
        """The only right output: what float64 says, rounded once."""
        scalars = {each.name: SCALAR for each in self.spec.operands if each.is_scalar}
        return reference.exact_result(self.spec, self.inputs, scalars)

    @cached_property
    def expected_reductions(self) -> dict[str, torch.Tensor]:
        """Likewise of what the epilogue reduces and the prologue sums, exactly too."""
        steps = [(index, step) for index, step in enumerate(self.spec.epilogue) if isinstance(step, Reduce)]
        values = {index: reference.evaluate(self.spec, self.inputs, end=index) for index, _ in steps}
        squares = [step.to for step in self.spec.prologue if isinstance(step, SumOfSquares)]
        return {
            **{step.to: reduced(step, values[index], values[index] * 0)[0].float() for index, step in steps},
            **{name: self.inputs["a"].float().square().sum(1) for name in squares},
        }

    def load(self, ptx: str) -> sim.Module:
        """A module of PTX that was made from this subject's."""
        return sim.load(ptx, source=self.kernel.text.source)

    def run(self, module: sim.Module, timing: Timing) -> sim.Report:
        """Run under one timing; raises ``SimulationError`` or ``WrongResult``."""
        target = SimTarget(Simulation(resolve(self.kernel.text.arch), *timing, sms=self.sms))
        output = self._poisoned()
        reductions = {name: torch.full_like(each, torch.nan) for name, each in self.expected_reductions.items()}
        tensors = {**self.inputs, self.spec.output.name: output, **reductions}
        views = {
            name: TensorView(target.address(each, name), tuple(each.shape), each.stride())
            for name, each in tensors.items()
        }
        sizes = with_splits(self.plan, self.sizes, self.sms)
        needed = workspace_bytes(self.plan, sizes, self.sms)
        workspace = {name: self._room(name, size) for name, size in needed.items()}
        places = {name: target.address(each, name) for name, each in workspace.items()}
        scalars = {each.name: SCALAR for each in self.spec.operands if each.is_scalar}
        problem = Problem(sizes, views, scalars, places)
        params = whole_block(self.plan, problem, encoder(target))
        grid = (grid_size(self.plan, sizes, self.sms), 1, 1)
        early = self.plan.programmatic_launch
        target.launch(SimKernel(self.kernel.text, module), grid, params, 0, early, in_use(self.plan, problem, needed))
        self._judge(output)
        self._judge_reductions(reductions)
        if any(room.any() for name, room in workspace.items() if is_counter(name)):
            raise WrongResult("counters of arrivals are not 0 after the launch")
        report: sim.Report = target.reports[0]
        return report

    def must_pass(self, timings: Iterable[Timing]) -> None:
        """The unedited kernel is right and silent under all of these; else nothing found in an edited one counts."""
        module = self.load(self.ptx)
        for timing in timings:
            warnings = self.run(module, timing).warnings
            assert not warnings, f"{self.spec.name} under {timing}: {warnings}"

    @staticmethod
    def _room(name: str, size: int) -> torch.Tensor:
        """Counters start at 0; sums that nobody wrote are NaN."""
        return torch.full((size,), 0 if is_counter(name) else 0xFF, dtype=torch.uint8)

    def _poisoned(self) -> torch.Tensor:
        """An output of NaN with NaN around it: behind every row and below the last one."""
        values = torch.full((self.m + 1, self.n), float("nan"), dtype=self.expected.dtype)
        return laid_out(values, self.spec.output, extra=16)[: self.m]

    def _judge_reductions(self, reductions: dict[str, torch.Tensor]) -> None:
        for name, result in reductions.items():
            wrong = (result != self.expected_reductions[name]).sum().item()
            if wrong:
                raise WrongResult(f"{wrong} of {result.numel()} elements of {name} differ from the exact result")

    def _judge(self, output: torch.Tensor) -> None:
        wrong = (output != self.expected).sum().item()
        if wrong:
            raise WrongResult(f"{wrong} of {output.numel()} elements differ from the exact result")
        whole = torch.empty(0, dtype=output.dtype).set_(output.untyped_storage())
        beyond = (~whole.isnan()).sum().item() - output.numel()
        if beyond:
            raise WrongResult(f"{beyond} elements outside the output are written")


@cache
def subject(name: str) -> Subject:
    """One of the kernels under test by name."""
    return _SUBJECTS[name]


def _reducing(spec: KernelSpec) -> KernelSpec:
    """Sums and largest magnitudes of rows, sums of columns, and the sum of everything."""
    steps = (Reduce(function="sum", along="n", to="sums"), Reduce(function="amax", along="n", to="amax"))
    steps += (Reduce(function="sum", along="mn", to="total"), Reduce(function="sum", along="m", to="columns"))
    return reducing(spec, "reducing", steps)


def _with_slots(spec: KernelSpec, ring: str, slots: int) -> KernelSpec:
    rings = (each.replace(slots=slots) if each.name == ring else each for each in spec.rings)
    return spec.replace(rings=tuple(rings))


_TWO_SLOTS = Shape(128, 128, slots=2, unroll=1, staging=4)
_SMALL = Shape(64, 64, groups=1, slots=3, unroll=1)

_COARSE, _FINE = Factor(DType.E4M3, 128), Factor(DType.E4M3, 32)
_FP4, _NVFP4 = Factor(DType.E2M1, 32), Factor(DType.E2M1, 16)

_SUBJECTS = {
    # 3 tiles on one CTA, 3 K blocks each in a ring of 2: slots and phases go round, staging buffers are used again
    "fp8": Subject(fp8_gemm_nt(_TWO_SLOTS), m=288, n=128, k=384),
    # scales of A in rows of K, gathered by lanes; the last rows lie outside the matrix
    "fp8_rows": Subject(fp8_gemm_nt(Shape(64, 32, groups=1, slots=2, unroll=1), sfa_major="k"), m=72, n=64, k=384),
    # A's tiles 64 x 32: three tiles on one CTA
    "fp8_small": Subject(fp8_gemm_nt(Shape(64, 32, groups=1, slots=2, unroll=1)), m=64, n=96, k=256),
    # two tiles on one CTA: a whole one, then one of 24 rows, of which A comes in two boxes of four
    "fp8_parts": Subject(fp8_gemm_nt(Shape(64, 32, groups=1, slots=2, unroll=1, part_rows=16)), m=88, n=32, k=384),
    # a pair of CTAs that share B by multicast
    "fp8_pair": Subject(fp8_gemm_nt(replace(_TWO_SLOTS, cluster=(2, 1))), m=256, n=384, k=384, sms=2),
    # four tiles on three CTAs: a whole one each, then a part each of the fourth, one of which lies outside the matrix
    "fp8_cut": Subject(fp8_gemm_nt(Shape(64, 96, groups=1, slots=2, unroll=1, cut=3)), m=64, n=344, k=384, sms=3),
    # five tiles on four CTAs: a whole one each, then a share of the fifth one's K blocks, two of 8
    "fp8_share": Subject(
        fp8_gemm_nt(Shape(64, 32, groups=1, slots=2, unroll=1, share=True)), m=64, n=152, k=1936, sms=4
    ),
    # three tiles on one CTA, whose epilogues run beside the next one's products; a unit of columns behind the first
    "fp8_overlap": Subject(fp8_gemm_nt(Shape(64, 64, groups=1, width=32, slots=2, overlap=True)), m=64, n=192, k=384),
    # three tiles on one CTA; products below each other are staged apart, of the lower one all but 8 rows are outside
    "fp8_apart": Subject(fp8_gemm_nt(Shape(128, 32, groups=1, slots=2, unroll=1, overlap=True)), m=72, n=96, k=384),
    # the same with scales of columns and whole rounds, where scales of the lower product's rows are read beside it
    "fp8_apart_columns": Subject(
        fp8_gemm_nt(
            Shape(128, 32, groups=1, slots=2, unroll=1, overlap=True, rounds=True, staging=1), DType.F32, sfb_columns=1
        ),
        m=72,
        n=96,
        k=640,
    ),
    # three tiles on one CTA, five K blocks each; slots of scales serve two blocks, those of factors go round by twos
    "fp8_strips": Subject(
        fp8_gemm_nt(Shape(64, 64, groups=1, slots=2, unroll=1, rounds=True, strips=2)), m=64, n=384, k=640
    ),
    # two tiles on one CTA, five K blocks each: rounds of two, in which two products of a block take turns at registers
    "fp8_partials": Subject(
        fp8_gemm_nt(Shape(64, 16, groups=1, width=8, slots=2, unroll=1, rounds=True, partials=2)), m=64, n=32, k=640
    ),
    "bf16_nt": Subject(bf16_gemm("nt", _SMALL), m=64, n=192, k=256),
    # two tiles on one CTA, each copied in a turn of three buffers, of which the second tile fills two and a bit
    "bf16_turns": Subject(bf16_gemm("nt", Shape(64, 192, groups=1, slots=2, staging=3, unroll=1)), m=64, n=336, k=128),
    "bf16_nn_c": Subject(bf16_gemm("nn", _SMALL, residual=True), m=72, n=128, k=256),
    # two atoms along m and along n: the descriptor's leading offset counts
    "bf16_tn": Subject(bf16_gemm("tn", Shape(64, 128, groups=1, slots=2, unroll=1), d=DType.F32), m=64, n=256, k=192),
    "bf16_direct": Subject(bf16_gemm("tt", _SMALL, direct_store=True), m=72, n=65, k=128),
    # three CTAs that share 7 K blocks (3, 2 and 2) in rings of 2; of 16 slices they own 6, 6 and 4
    "push": Subject(fp8_gemm_nt(Shape(64, 32, groups=1, slots=2, unroll=1, splits=3)), m=70, n=40, k=880),
    # two CTAs that own half the columns each; launched early, weights are read ahead
    "push_bf16": Subject(
        bf16_gemm("nt", Shape(64, 32, groups=1, slots=2, unroll=1, splits=2), programmatic_launch=True), 64, 32, 320
    ),
    # datacenter Blackwell: 4 tiles on one CTA, 4 K blocks each (the last of 32): every ring goes round. A word of A's
    # scales serves 4 K blocks, one of B's a single one
    "sm100_fp8": Subject(scaled_gemm_nt(_COARSE, _FINE, PairShape(32, slots=4)), m=129, n=40, k=416),
    # a pair of CTAs that multiply together: the first one's barriers count both CTAs' bytes, a ring holds all scales
    "sm100_pair": Subject(scaled_gemm_nt(_COARSE, _COARSE, PairShape(32, 2, slots=4)), m=257, n=40, k=416, sms=2),
    # a pair in which each CTA transposes scales before the slot is handed on; two words of them per product and row
    "sm100_nvfp4": Subject(
        scaled_gemm_nt(_NVFP4, _NVFP4, PairShape(64, 2, slots=2), scale=DType.UE4M3X4), m=257, n=72, k=544, sms=2
    ),
    # a factor that is packed in global memory and takes a byte an element in shared memory; data of two tiles but
    # scales of one
    "sm100_mixed": Subject(
        _with_slots(scaled_gemm_nt(_COARSE, _FP4, PairShape(32, slots=6)), "sf", 1), m=128, n=72, k=512
    ),
    # both factors lie transposed; two atoms along m and n: the leading offset counts
    # launch control: two CTAs, then two pairs, that take over the tiles of seven others which never start
    "sm100_clc": Subject(
        dense_sm100.bf16_gemm("nt", PairShape(32, slots=2, launch_control=True)), m=300, n=72, k=96, sms=2
    ),
    "sm100_clc_pair": Subject(
        dense_sm100.bf16_gemm("nt", PairShape(32, 2, slots=2, launch_control=True)), m=600, n=72, k=96, sms=4
    ),
    "sm100_bf16_tn": Subject(dense_sm100.bf16_gemm("tn", PairShape(128, slots=2), DType.F32), m=129, n=136, k=160),
}


_WARPS = WarpShape(32, 32, warps=(2, 1), slots=3, k_bytes=64)
_WARP = WarpShape(16, 16, warps=(1, 1), slots=2)
_FLAT = WarpShape(16, 32, warps=(2, 1), slots=2, swap=True)

_SUBJECTS |= {
    # workstation Blackwell: 2 tiles on one CTA, 10 K blocks each (the last of 32). A word of A's scales serves 8 K
    # blocks, one of B's two
    "sm120_fp8": Subject(dense_sm120.scaled_gemm_nt(_COARSE, _FINE, _WARPS), m=20, n=40, k=608),
    # a factor that is packed in global memory and takes a byte an element in shared memory
    "sm120_mixed": Subject(dense_sm120.scaled_gemm_nt(_COARSE, _FP4, _WARP), m=17, n=24, k=640),
    # packed; a scale of A serves four products' halves, B's are two a product
    "sm120_mxfp4": Subject(dense_sm120.scaled_gemm_nt(Factor(DType.E2M1, 128), _FP4, _WARP), m=17, n=24, k=1120),
    "sm120_nvfp4": Subject(dense_sm120.scaled_gemm_nt(_NVFP4, _NVFP4, _WARP, scale=DType.UE4M3X4), m=17, n=24, k=544),
    # fragments are transposed on the way; two atoms along n
    "sm120_bf16_nn": Subject(
        dense_sm120.bf16_gemm("nn", WarpShape(32, 128, warps=(2, 1), slots=2), DType.F32), m=33, n=136, k=160
    ),
    "sm120_swap": Subject(dense_sm120.scaled_gemm_nt(_COARSE, _FINE, _FLAT, DType.F32, True), m=17, n=41, k=672),
    # three tiles along n and two along m, whose rows are reduced by whoever comes last
    "sm120_reduce": Subject(_reducing(dense_sm120.bf16_gemm("nt", _WARP)), m=20, n=40, k=64, sms=3),
    # prologues: two tiles of rows, two CTAs a tile, of 5 and 4 K blocks; one walks both tiles' second splits
    "prenorm": Subject(tf32_hc_prenorm_gemm(PrenormShape(64, 24, slots=2)), m=70, n=24, k=576, sms=4),
    # warpgroups that share K: one CTA walks five tiles of one K block, which one of them may have read long before
    "prenorm_shared": Subject(
        tf32_hc_prenorm_gemm(PrenormShape(64, 24, groups=2, slots=4, share_k=True)), m=300, n=24, k=64
    ),
    "sm120_prenorm": Subject(
        tf32_hc_prenorm_gemm(PrenormShape(64, 24, slots=2), arch=Arch.SM120), m=70, n=24, k=576, sms=4
    ),
    # A through tensor memory: two CTAs a tile; and one CTA that walks five tiles, of two K blocks
    "sm100_prenorm": Subject(
        tf32_hc_prenorm_gemm(PrenormShape(128, 32, slots=4), arch=Arch.SM100), m=140, n=24, k=576, sms=4
    ),
    "sm100_prenorm_tiles": Subject(
        tf32_hc_prenorm_gemm(PrenormShape(128, 16, slots=2), arch=Arch.SM100), m=520, n=16, k=128
    ),
    # two CTAs share a tile: 26 K blocks, of which 16 and 10
    "sm120_split": Subject(
        dense_sm120.scaled_gemm_nt(_COARSE, _FINE, WarpShape(16, 16, warps=(1, 1), slots=3, k_bytes=64, splits=2)),
        m=16,
        n=24,
        k=1632,
        sms=2,
    ),
}


def register(name: str, subject: Subject) -> None:
    """One more kernel under test."""
    _SUBJECTS[name] = subject


def names() -> list[str]:
    """All subjects."""
    return list(_SUBJECTS)
