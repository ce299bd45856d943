"""What pages say of chains of launches, epilogues, reductions and the prenorm product."""

from __future__ import annotations

from measured import environment, geomean, load, over

CHAINS = {
    "h100": "DeepGEMM's chains were measured earlier on the same kind of card, without.\n"
    "These are kernels of that time: since then every early launch has the op's own kernel, and one with many tiles a\n"
    "CTA lets the next start when it has fetched its last. BF16 at m = 128 is shown where the kernel was the same.",
    "h200": "DeepGEMM's chains are in the same run, without. Tiles that walk (no `_s` in their names) read nothing\n"
    "ahead; some are slower for an early launch. Where cuBLAS takes more than 12 us for k = 7168 and n to 2112, or\n"
    "for k = 2048, the host was late with its launches.",
}


def chains(card: str = "h100") -> list[str]:
    result = load(f"chains_{card}.json")
    earlier = load("peers_h100.json")["chains"] if card == "h100" else []
    peer = {("fp8", r["m"], r["n"], r["k"]): r["deepgemm_us"] for r in earlier}
    lines = [
        "## Chains of launches",
        "",
        f"Measured on {environment(result)}, by `benchmarks/chains.py`: 64",
        "launches over rotating weights, microseconds a launch. Early: with a programmatic launch, weights read before",
        f"the kernel ahead has ended. {CHAINS[card]}",
        "",
        "| | m | n | k | cuBLAS us | us | early us | early / cuBLAS | early / DeepGEMM |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        us, own = row["programmatic_us"], peer.get((row["kind"], row["m"], row["n"], row["k"]))
        other = row.get("deepgemm_us", own)
        lines.append(
            f"| {row['kind']} | {row['m']} | {row['n']} | {row['k']} | {row['cublas_us']:.1f} | {row['us']:.1f} | "
            f"{us:.1f} | {us / row['cublas_us']:.2f} | {f'{us / other:.2f}' if other else ''} |"
        )
    return [*lines, ""]


def fused(card: str = "h100") -> list[str]:
    result = load(f"fused_{card}.json")
    rows = result["rows"]
    sides = {
        "mxfp8": "MXFP8 out",
        "fp8": "FP8 1x128 out",
        "bias": "bias",
        "bias_relu": "bias, relu",
        "bf16_bias_relu": "bf16 bias, relu",
        "bias_silu": "bias, silu",
        "bias_gelu": "bias, gelu (erf)",
        "swiglu": "SwiGLU",
    }
    sides = {name: title for name, title in sides.items() if f"{name}_us" in rows[0]}
    lines = [
        "## Epilogues behind `fp8_gemm_nt`",
        "",
        f"Measured on {environment(result)}, by `benchmarks/fused.py`.",
        "First the time of the product into bf16 (w), then times with an epilogue over it. Last, the product and an",
        "MXFP8 quantiser in torch, one `torch.compile` graph, over `fp8_gemm_nt_mxfp8out`: called from Python ten",
        "times in a row, and replayed as CUDA graphs, without a flush. There",
        f"geometric means are {geomean(row['chain_compiled_us'] / row['chain_us'] for row in rows):.2f} and "
        f"{geomean(row['graph_compiled_us'] / row['graph_us'] for row in rows):.2f}; of MXFP8 out over bf16, "
        f"{geomean(row['mxfp8_us'] / row['bf16_us'] for row in rows):.3f}.",
        "",
        "The warps that multiply also run the epilogue; only where it rounds, what was summed first is staged beside",
        "products that follow. A bias is where sums start, and rounding does relu. What another step costs is its",
        "instructions, 128 elements a thread, against the K blocks of a tile: most at k = 1536. silu takes three",
        "special functions for two elements, of which an SM does 16 a cycle; gelu with erf one for one, among 14",
        "instructions. The faster the product alone, the larger these ratios.",
        *(["SwiGLU takes half as many as silu, and its output has half the columns."] if "swiglu" in sides else []),
        "",
        *([result["note"], ""] if "note" in result else []),
        f"| m | n | k | bf16 us | {' | '.join(sides.values())} | compiled, called | compiled, replayed |",
        "|--:|--:|--:|--:|" + "--:|" * (len(sides) + 2),
    ]
    for row in rows:
        cells = [over(row, name, "bf16") for name in sides]
        cells += [f"{row[f'{kind}_compiled_us'] / row[f'{kind}_us']:.2f}" for kind in ("chain", "graph")]
        lines.append(f"| {row['m']} | {row['n']} | {row['k']} | {row['bf16_us']:.1f} | {' | '.join(cells)} |")
    return [*lines, ""]


def reductions() -> list[str]:
    result = load("reductions_h100.json")
    lines = [
        "## Reductions in the epilogue",
        "",
        f"Measured on {environment(result)}, by `benchmarks/reductions.py`, behind",
        "`bf16_gemm_nt`: times over that of the product alone, the memset of the counters included. Sums of columns",
        "end with one warp adding up a strip of partial sums for each row of tiles, which shows where rows are many.",
        "",
        "| m | n | k | plain us | sums of squares of rows | amax of all | sums of columns |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        cells = [over(row, name, "plain") for name in ("rows", "whole", "columns")]
        lines.append(f"| {row['m']} | {row['n']} | {row['k']} | {row['plain_us']:.1f} | {' | '.join(cells)} |")
    return [*lines, ""]


DEEPGEMM_PRENORM = {
    False: "was not in this run; its times are those measured earlier on an H100, in the same way",
    True: "was in this run",
}
"""By whether it was."""


def prenorm(card: str = "h100") -> list[str]:
    result = load(f"prenorm_{card}.json")
    lines = [
        "## `tf32_hc_prenorm_gemm`",
        "",
        f"Measured on {environment(result)}, by `benchmarks/prenorm.py`.",
        "torch: an fp32 product with tf32 allowed and squares summed, of an A that is fp32 already. DeepGEMM",
        f"{DEEPGEMM_PRENORM[all(row.get('same_run') for row in result['rows'])]}. Ratios are our time over theirs.",
        "",
        "| m | n | k | num_splits | us | GB/s | / DeepGEMM | / torch |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['m']} | {row['n']} | {row['k']} | {row['splits']} | {row['us']:.1f} | {row['gb_s']:.0f} | "
            f"{row['us'] / row['deepgemm_us']:.3f} | {row['us'] / row['torch_us']:.3f} |"
        )
    return [*lines, ""]
