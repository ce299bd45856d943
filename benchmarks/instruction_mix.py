"""Writes docs/instruction_mix.md: instructions of main loops and epilogues of our cubins beside those of DeepGEMM's.

    python benchmarks/instruction_mix.py [--check]

No GPU is used: cubins are compiled and disassembled. A main loop is the smallest one that holds all products of a K
block; a block of copies that runs every fourth K block counts a fourth. An epilogue is the loop over tiles of the
storing warps, with the loop over columns inside it as often as it runs; it leaves out finding the next tile, and
clearing what no product wrote (k = 0). NOP counts on sm100 alone, where fences leave it; elsewhere it fills issue slots
between products. DeepGEMM's figures (main, commit 54e2261, for sm120 nv_dev, commit a6b593d; compiled by nvcc 13.0, its
host code's own configurations) were counted the same way: every wait succeeds at once.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen import catalog
from gemmgen.backends import emit, lower
from gemmgen.catalog import dense, dense_sm100, dense_sm120
from gemmgen.catalog.dense_sm100 import Factor, PairShape, scaled_gemm_nt
from gemmgen.catalog.dense_sm120 import WarpShape
from gemmgen.commands.sass import disassemble
from gemmgen.ir import Arch, DType, KernelSpec, Plan, UmmaPlan
from gemmgen.runtime.nvrtc import compile_cubin

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "instruction_mix.md"
PRODUCTS = ("QGMMA", "HGMMA", "UTCQMMA", "UTCHMMA", "UTCOMMA", "UTCMXQMMA", "HMMA", "QMMA", "OMMA")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?\S+\s+)?(.*?)\s*;")
LABEL = re.compile(r"^\s*\.(L_x_\d+):")
BRANCH = re.compile(r"^BRA.*\.(L_x_\d+)")

Span = tuple[int, int]
"""First instruction of a stretch, and the one behind it."""


@dataclass(frozen=True)
class Peer:
    """What was counted in a peer's kernel: its tile, products and instructions of a K block, and of its epilogue for an
    element that a thread stores."""

    tile: str
    products: float
    instructions: float
    epilogue: float = 0.0


WIDE = PairShape(224, ctas=2)
COARSE, FP4 = Factor(DType.E4M3, 128), Factor(DType.E2M1, 32)
PAIRS: list[tuple[str, KernelSpec, Peer | None]] = [
    ("sm90 FP8", catalog.fp8_gemm_nt(dense.Shape(256, 128, unroll=8)), Peer("256x128", 8, 191.8)),
    ("sm90 FP8, small m", catalog.fp8_gemm_nt(dense.Shape(64, 32, groups=1, unroll=8)), Peer("64x32", 4, 58.6)),
    ("sm90 BF16", catalog.bf16_gemm("nt", dense.Shape(256, 128, unroll=8)), Peer("256x128", 8, 51.0)),
    ("sm100 FP8, scales per 128", scaled_gemm_nt(COARSE, COARSE, WIDE), Peer("256x224", 4, 44.8, 1.8)),
    ("sm100 FP8, small m", scaled_gemm_nt(COARSE, COARSE, PairShape(16, swap=True)), Peer("16x128", 4, 43.3, 5.69)),
    ("sm100 FP8 x FP4", scaled_gemm_nt(COARSE, FP4, WIDE), Peer("256x224", 4, 53.0, 1.8)),
    ("sm100 BF16", dense_sm100.bf16_gemm("nt", WIDE), Peer("256x224", 4, 42.0, 1.8)),
    ("sm100 TF32", dense_sm100.tf32_gemm_nt(WIDE), None),
    ("sm100 MXFP4", catalog.scaled_gemm_sm100(catalog.MXFP4, WIDE), None),
    ("sm100 NVFP4", catalog.scaled_gemm_sm100(catalog.NVFP4, WIDE), None),
    (
        "sm120 FP8, scales per 128",
        dense_sm120.scaled_gemm_nt(COARSE, COARSE, WarpShape(128, 128, k_bytes=64)),
        Peer("128x128, 64 B of k", 32, 96.0),
    ),
    (
        "sm120 FP8, split-K",
        dense_sm120.scaled_gemm_nt(COARSE, COARSE, WarpShape(64, 64, warps=(2, 4), splits=2)),
        Peer("64x64", 16, 69.5),
    ),
    (
        "sm120 FP4, scales per 32",
        dense_sm120.scaled_gemm_nt(FP4, FP4, WarpShape(128, 128, k_bytes=64)),
        Peer("128x128, 64 B of k", 32, 116.0),
    ),
    (
        "sm120 FP8 x FP4",
        dense_sm120.scaled_gemm_nt(COARSE, FP4, WarpShape(128, 128)),
        Peer("128x128", 64, 285.0),
    ),
    (
        "sm120 BF16",
        dense_sm120.bf16_gemm("nt", WarpShape(128, 128, k_bytes=64)),
        Peer("128x128, 64 B of k", 32, 111.0),
    ),
]


class Program:
    """The opcodes of a kernel in order, its loops, and the stretches that a branch can skip."""

    def __init__(self, sass: str) -> None:
        self.opcodes: list[str] = []
        labels: dict[str, int] = {}
        for line in sass.splitlines():
            if label := LABEL.match(line):
                labels[label[1]] = len(self.opcodes)
            elif found := INSTRUCTION.match(line):
                self.opcodes.append(found[1])
        branches = [(at, BRANCH.match(opcode)) for at, opcode in enumerate(self.opcodes)]
        jumps = [(at, labels[found[1]]) for at, found in branches if found]
        self.loops: list[Span] = [(to, at + 1) for at, to in jumps if to <= at]
        self.skipped: list[Span] = [(at + 1, to) for at, to in jumps if to > at]

    def holds(self, span: Span, *opcodes: str) -> bool:
        return any(opcode.startswith(opcodes) for opcode in self.opcodes[slice(*span)])

    def smallest_loop(self, *opcodes: str) -> Span:
        """The smallest loop that holds one of these opcodes."""
        found = [loop for loop in self.loops if self.holds(loop, *opcodes)]
        if not found:
            raise ValueError(f"no loop holds {' or '.join(opcodes)}")
        return min(found, key=lambda loop: loop[1] - loop[0])

    def inside(self, span: Span) -> list[Span]:
        """What a branch of the stretch can skip without leaving it."""
        return [each for each in self.skipped if span[0] < each[0] and each[1] <= span[1]]


@cache
def compiled(spec: KernelSpec) -> tuple[Program, Plan]:
    return Program(disassemble(compile_cubin(emit(spec), spec.arch, spec.name).code)), lower(spec)


def main_loop(program: Program, plan: Plan) -> Counter[str]:
    """Opcodes of the loop that multiplies; copies of scales that serve several K blocks count by how often they run."""
    loop = program.smallest_loop(*PRODUCTS)
    every = max(ring.every for ring in plan.rings)
    rare = [
        each for each in program.inside(loop) if program.holds(each, "UTCCP") and not program.holds(each, *PRODUCTS)
    ]
    counts = _counted(program, loop, lambda at: 1 / every if _within(at, rare) else 1.0)
    if plan.arch != Arch.SM100:
        del counts["NOP"]
    return counts


def epilogue(program: Program, plan: Plan) -> Counter[str]:
    """Opcodes that a storing warp runs for a tile."""
    assert isinstance(plan.mma, UmmaPlan)
    columns = program.smallest_loop("LDTM")
    waits = [loop for loop in program.loops if program.holds(loop, "LDTM") and program.holds(loop, "SYNCS.PHASECHK")]
    tile = min(waits, key=lambda loop: loop[1] - loop[0])
    runs = _runs(program, columns, plan.mma.columns) if columns != tile else 1
    never = [each for each in program.inside(tile) if _only_clears(program, each) or program.holds(each, "MUFU")]
    last = [each for each in program.inside(columns) if program.holds(each, "SYNCS.ARRIVE")]

    def times(at: int) -> float:
        if _within(at, never):
            return 0.0
        return runs if _within(at, [columns]) and not _within(at, last) else 1.0

    return _counted(program, tile, times)


def _runs(program: Program, loop: Span, columns: int) -> int:
    """How often the loop over the columns of a tile runs."""
    (load,) = (each for each in program.opcodes[slice(*loop)] if each.startswith("LDTM"))
    wide = re.match(r"LDTM(?:\.\w+)*\.x(\d+)", load)
    assert wide is not None, load
    return columns // int(wide[1])


def _only_clears(program: Program, span: Span) -> bool:
    return span[0] < span[1] and all(each.startswith("CS2R") for each in program.opcodes[slice(*span)])


def _within(at: int, spans: list[Span]) -> bool:
    return any(start <= at < end for start, end in spans)


def _counted(program: Program, span: Span, times: Callable[[int], float]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for at in range(*span):
        counts[re.split(r"[. ]", program.opcodes[at])[0]] += times(at)  # type: ignore[assignment]
    return counts


def common(counts: Counter[str], per: float = 1.0) -> str:
    return ", ".join(f"{count / per:.3g} {kind}" for kind, count in counts.most_common(8))


def loop_row(title: str, spec: KernelSpec, peer: Peer | None) -> str:
    counts = main_loop(*compiled(spec))
    multiplied = sum(count for kind, count in counts.items() if kind in PRODUCTS)
    blocks = multiplied / (peer.products if peer else 4)
    theirs = f"{peer.products:.3g} | {peer.instructions}" if peer else "- | -"
    tile = peer.tile if peer else f"{spec.tile.m * spec.cluster.m}x{spec.tile.n * spec.cluster.n}"
    ours = f"{multiplied / blocks:.3g} | {counts.total() / blocks:.1f}"
    return f"| {title} | {tile} | {ours} | {theirs} | {common(counts, blocks)} |"


def epilogue_row(title: str, spec: KernelSpec, peer: Peer | None) -> str:
    program, plan = compiled(spec)
    assert isinstance(plan.mma, UmmaPlan)
    counts = epilogue(program, plan)
    each = f"{counts.total():.0f} | {counts.total() / plan.mma.columns:.2f}"
    return f"| {title} | {plan.mma.columns} | {each} | {peer.epilogue if peer else '-'} | {common(counts)} |"


LOOPS = """
On sm100 a warp waits for slots and one of its lanes issues. Ours are more for FP8 x FP4: the compiler drops the branch
around what that lane does where it is short, and keeps it (4 instructions) where every product has an instruction
descriptor of its own, as scales of 32 elements make it. The loop is not unrolled, so that each instruction is in the
text once; a K block of 256x224 keeps the tensor core busy for over 400 cycles.

On sm120 products are as many as DeepGEMM's and other instructions fewer: an address is one sum and one
exclusive or a step, words of scales stay in registers until the next one comes, bytes past the end of k
cost scalar instructions only, and each BF16 fragment pair comes by one ldmatrix.x4.
"""
EPILOGUES = """
A thread stores one element of every column of the product. Lanes hold rows of the output, with small m its columns:
then two neighbours exchange rounded pairs before they write. NVFP4 also multiplies by the scale of the tensors.
"""


def text() -> str:
    lines = [
        "# Instruction mix of main loops and epilogues",
        "",
        "Written by `python benchmarks/instruction_mix.py`, which says how instructions are counted. Nothing was run.",
        "",
        "| kernel | tile | products a K block | instructions | DeepGEMM: products | instructions | most common |",
        "|---|---|--:|--:|--:|--:|---|",
        *(loop_row(*pair) for pair in PAIRS),
        LOOPS,
        "| kernel | elements a thread | instructions a tile | an element | DeepGEMM: an element | most common |",
        "|---|--:|--:|--:|--:|---|",
        *(epilogue_row(*pair) for pair in PAIRS if pair[0].startswith("sm100")),
        EPILOGUES,
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the document is not what the cubins say")
    if parser.parse_args().check:
        raise SystemExit(0 if DOCUMENT.read_text() == text() else f"{DOCUMENT} is stale")
    DOCUMENT.write_text(text())


if __name__ == "__main__":
    main()
