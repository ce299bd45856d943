"""Writes docs/instruction_mix.md: instructions of the main loops of our cubins beside those counted in DeepGEMM's.

    python benchmarks/instruction_mix.py [--check]

No GPU is used: cubins are compiled and disassembled. A loop is the smallest one that holds all products of a K block;
instructions that run only every few K blocks count whole; NOP, which fills the issue slots between products, does not
count. DeepGEMM's figures (main, commit 54e2261, for sm120 nv_dev, commit a6b593d; compiled by nvcc 13.0, its host
code's own configurations) count a K block's average, so they are a little lower for the same code.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gemmgen import catalog
from gemmgen.backends import emit
from gemmgen.catalog import dense, dense_sm100, dense_sm120
from gemmgen.commands.sass import disassemble
from gemmgen.ir import DType, KernelSpec
from gemmgen.runtime.nvrtc import compile_cubin

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "instruction_mix.md"
PRODUCTS = ("QGMMA", "HGMMA", "UTCQMMA", "UTCHMMA", "UTCOMMA", "UTCMXQMMA", "HMMA", "QMMA", "OMMA")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?\S+\s+)?(.*?)\s*;")
LABEL = re.compile(r"^\s*\.(L_x_\d+):")
BRANCH = re.compile(r"^BRA.*\.(L_x_\d+)")


@dataclass(frozen=True)
class Peer:
    """What was counted in a peer's kernel: its tile, products and all instructions of a K block."""

    tile: str
    products: float
    instructions: float


PAIRS: list[tuple[str, KernelSpec, Peer]] = [
    ("sm90 FP8", catalog.fp8_gemm_nt(dense.Shape(256, 128, unroll=8)), Peer("256x128", 8, 191.8)),
    ("sm90 FP8, small m", catalog.fp8_gemm_nt(dense.Shape(64, 32, groups=1, unroll=8)), Peer("64x32", 4, 58.6)),
    ("sm90 BF16", catalog.bf16_gemm("nt", dense.Shape(256, 128, unroll=8)), Peer("256x128", 8, 51.0)),
    (
        "sm100 FP8, scales per 128",
        dense_sm100.scaled_gemm_nt(
            dense_sm100.Factor(DType.E4M3, 128), dense_sm100.Factor(DType.E4M3, 128), dense_sm100.PairShape(224, ctas=2)
        ),
        Peer("256x224", 4, 44.8),
    ),
    (
        "sm100 FP8 x FP4",
        dense_sm100.scaled_gemm_nt(
            dense_sm100.Factor(DType.E4M3, 128), dense_sm100.Factor(DType.E2M1, 32), dense_sm100.PairShape(224, ctas=2)
        ),
        Peer("256x224", 4, 53.0),
    ),
    (
        "sm100 BF16",
        dense_sm100.bf16_gemm("nt", dense_sm100.PairShape(224, ctas=2)),
        Peer("256x224", 4, 42.0),
    ),
    (
        "sm120 FP8, scales per 128",
        dense_sm120.scaled_gemm_nt(
            dense_sm100.Factor(DType.E4M3, 128),
            dense_sm100.Factor(DType.E4M3, 128),
            dense_sm120.WarpShape(128, 128, k_bytes=64),
        ),
        Peer("128x128, 64 B of k", 32, 96.0),
    ),
    (
        "sm120 FP8, split-K",
        dense_sm120.scaled_gemm_nt(
            dense_sm100.Factor(DType.E4M3, 128),
            dense_sm100.Factor(DType.E4M3, 128),
            dense_sm120.WarpShape(64, 64, warps=(2, 4), splits=2),
        ),
        Peer("64x64", 16, 69.5),
    ),
    (
        "sm120 FP4, scales per 32",
        dense_sm120.scaled_gemm_nt(
            dense_sm100.Factor(DType.E2M1, 32),
            dense_sm100.Factor(DType.E2M1, 32),
            dense_sm120.WarpShape(128, 128, k_bytes=64),
        ),
        Peer("128x128, 64 B of k", 32, 116.0),
    ),
    (
        "sm120 FP8 x FP4",
        dense_sm120.scaled_gemm_nt(
            dense_sm100.Factor(DType.E4M3, 128), dense_sm100.Factor(DType.E2M1, 32), dense_sm120.WarpShape(128, 128)
        ),
        Peer("128x128", 64, 285.0),
    ),
    (
        "sm120 BF16",
        dense_sm120.bf16_gemm("nt", dense_sm120.WarpShape(128, 128, k_bytes=64)),
        Peer("128x128, 64 B of k", 32, 111.0),
    ),
]


def loop_of(sass: str) -> list[str]:
    """Opcodes of the smallest backward branch's range that holds the most products."""
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in sass.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif found := INSTRUCTION.match(line):
            opcodes.append(found[1])
            branch = BRANCH.match(found[1])
            if branch and branch[1] in labels:
                loops.append((labels[branch[1]], len(opcodes)))
    with_products = [(start, end) for start, end in loops if products(opcodes[start:end])]
    if not with_products:
        raise ValueError("no loop holds a matrix product")
    start, end = min(with_products, key=lambda loop: loop[1] - loop[0])
    return [opcode for opcode in opcodes[start:end] if not opcode.startswith("NOP")]


def products(opcodes: list[str]) -> int:
    return sum(opcode.startswith(PRODUCTS) for opcode in opcodes)


def row(title: str, spec: KernelSpec, peer: Peer) -> str:
    cubin = compile_cubin(emit(spec), spec.arch, spec.name)
    opcodes = loop_of(disassemble(cubin.code))
    blocks = products(opcodes) / peer.products
    kinds = Counter(re.split(r"[. ]", opcode)[0] for opcode in opcodes)
    common = ", ".join(f"{count / blocks:.3g} {kind}" for kind, count in kinds.most_common(8))
    ours = f"{products(opcodes) / blocks:.3g} | {len(opcodes) / blocks:.1f}"
    return f"| {title} | {peer.tile} | {ours} | {peer.products:.3g} | {peer.instructions} | {common} |"


def text() -> str:
    lines = [
        "# Instruction mix of main loops",
        "",
        "Written by `python benchmarks/instruction_mix.py`, which says how instructions are counted. Nothing was run.",
        "",
        "| kernel | tile | products a K block | instructions | DeepGEMM: products | instructions | most common |",
        "|---|---|--:|--:|--:|--:|---|",
        *(row(*pair) for pair in PAIRS),
        "",
        "Where ours are more: on sm100 one thread issues the loop, and a K block of 256x224 keeps the tensor core busy",
        "for over 400 cycles, so a few dozen scalar instructions more do not show; ours hold the",
        "copies of both rings of",
        "scales, which run every fourth K block when a scale covers 128 of k but count whole here, and a test for the",
        "end of k before each product but the first.",
        "",
        "On sm120 products are as many as DeepGEMM's and other instructions fewer: an address is one sum and one",
        "exclusive or a step, words of scales stay in registers until the next one comes, bytes past the end of k",
        "cost scalar instructions only, and each BF16 fragment pair comes by one ldmatrix.x4.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the document is not what the cubins say")
    if parser.parse_args().check:
        raise SystemExit(0 if DOCUMENT.read_text() == text() else f"{DOCUMENT} is stale")
    DOCUMENT.write_text(text())


if __name__ == "__main__":
    main()
