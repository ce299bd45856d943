"""Writes docs/performance.md and docs/performance_h200.md from what was measured: no number in them is typed by hand.

python benchmarks/report.py [--check]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cards
from bounds import MOST_ELEMENTS, MOST_PRODUCTS
from environment import of_card
from goals import goals

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "benchmarks" / "results"
DOCUMENT = TOP / "docs" / "performance.md"
H200 = TOP / "docs" / "performance_h200.md"
BESIDE = {"deep_gemm": "DeepGEMM", "triton": "Triton"}
"""Libraries whose versions files have, but for those from before they were kept."""
Row = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """A result, which must be the card's that its name says."""
    return of_card(RESULTS / name, json.loads((RESULTS / name).read_text()))


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def environment(result: dict[str, Any]) -> str:
    env = result["environment"]
    driver = f"driver for CUDA {env['cuda_driver']}, " if "cuda_driver" in env else ""
    beside = "".join(f"{words} {env[name]}, " for name, words in BESIDE.items() if name in env)
    return (
        f"{env['card']} ({env['sms']} SMs), {driver}NVRTC {env['nvrtc']}, torch {env['torch']}, {beside}{env['date']}"
    )


def peers() -> dict[tuple[str, int, int, int], float]:
    """DeepGEMM's time over cuBLAS's by problem."""
    return {
        (r["kind"], r["m"], r["n"], r["k"]): r["deepgemm_us"] / r["cublas_us"] for r in load("peers_h100.json")["rows"]
    }


def dense(card: str = "h100") -> list[str]:
    result, peer = load(f"dense_{card}.json"), peers()
    beside = any("deepgemm_us_write" in row for row in result["rows"])
    lines = [
        "## Dense GEMM",
        "",
        f"Measured on {environment(result)}, by `benchmarks/dense.py` through the public ops.",
        "Medians in microseconds by CUDA events, calls interleaved, L2 flushed before each by a 256",
        "MiB write (w) or read (r).",
        "Inputs are normal; FP8 scales come from quantising them, A's already m-contiguous. Ratios",
        "are our time over the",
        "other's: below 1 is faster. cuBLAS FP8 is `torch._scaled_mm` with one scale a tensor, which does less work.",
        *left_out(result),
        "",
        f"![Roofline](pictures/roofline_{card}.png)",
        "",
        f"![How much faster than cuBLAS](pictures/ratios_{card}.png)",
        "",
        *([] if beside else placed()),
    ]
    lines += [result["note"], ""] if "note" in result else []
    for kind in ("fp8", "bf16"):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        lines += summary(kind, rows, peer) + table(kind, rows, peer)
    return lines


def placed() -> list[str]:
    """Where DeepGEMM's ratios are from, where it was not in the run."""
    return [
        "DeepGEMM was not in this run. Its place is our ratio to cuBLAS over its own ratio to cuBLAS",
        "measured earlier on",
        f"the same kind of card ({load('peers_h100.json')['what']}).",
        "",
    ]


def left_out(result: dict[str, Any]) -> list[str]:
    """Libraries that the run did not have, in its own words."""
    return [f"{sentence}." for sentence in result.get("left_out", ())]


def libraries(row: Row) -> list[str]:
    """Those that a row was measured beside."""
    return [key.removesuffix("_us_write") for key in row if key.endswith("_us_write")]


def others(rows: list[Row]) -> list[str]:
    """Libraries beside cuBLAS that were in the run."""
    return sorted({name for row in rows for name in libraries(row)} - {"cublas", "deepgemm"})


def against(rows: list[Row], name: str, flush: str = "write") -> str:
    """Geometric mean of our time over a library's, where it was right."""
    known = [row for row in rows if f"{name}_us_{flush}" in row]
    return f"{geomean(row[f'us_{flush}'] / row[f'{name}_us_{flush}'] for row in known):.3f}" if known else "-"


def read_beside(rows: list[Row]) -> bool:
    """Whether DeepGEMM was timed after a read, too."""
    return any("deepgemm_us_read" in row for row in rows)


def ratio(row: Row, flush: str) -> float:
    return float(row[f"us_{flush}"] / row[f"cublas_us_{flush}"])


def against_peer(row: Row, peer: dict[tuple[str, int, int, int], float]) -> float:
    if "deepgemm_us_write" in row:
        return float(row["us_write"] / row["deepgemm_us_write"])
    return ratio(row, "write") / peer[row["kind"], row["m"], row["n"], row["k"]]


def summary(kind: str, rows: list[Row], peer: dict[tuple[str, int, int, int], float]) -> list[str]:
    read = ["DeepGEMM (r)"] if read_beside(rows) else []
    names = ["cuBLAS (w)", "cuBLAS (r)", "DeepGEMM (w)", *read, *(f"{name} (w)" for name in others(rows))]
    lines = [
        f"### {kind.upper()}: geometric means",
        "",
        "| m |" + "".join(f" / {name} |" for name in names),
        "|--:|" + "--:|" * len(names),
    ]
    for m in sorted({row["m"] for row in rows}):
        some = [row for row in rows if row["m"] == m]
        cells = [
            geomean(ratio(row, "write") for row in some),
            geomean(ratio(row, "read") for row in some),
            geomean(against_peer(row, peer) for row in some),
        ]
        texts = [f"{cell:.3f}" for cell in cells] + [against(some, "deepgemm", "read") for _ in read]
        texts += [against(some, name) for name in others(rows)]
        lines.append(f"| {m} | " + " | ".join(texts) + " |")
    return [*lines, ""]


def table(kind: str, rows: list[Row], peer: dict[tuple[str, int, int, int], float]) -> list[str]:
    read = read_beside(rows)
    lines = [
        f"### {kind.upper()}: every problem",
        "",
        "| m | n | k | tile | us (w) | us (r) | / cuBLAS (w) | / cuBLAS (r) | / DeepGEMM (w) |"
        + f"{' / DeepGEMM (r) |' if read else ''} TFLOP/s | worst tile |",
        "|--:|--:|--:|---|" + "--:|" * (8 if read else 7),
    ]
    for row in rows:
        after_read = f"{against([row], 'deepgemm', 'read')} | " if read else ""
        rate = 2 * row["m"] * row["n"] * row["k"] / row["us_write"] / 1e6
        lines.append(
            f"| {row['m']} | {row['n']} | {row['k']} | {row['tile']} | {row['us_write']:.1f} | {row['us_read']:.1f} | "
            f"{ratio(row, 'write'):.3f} | {ratio(row, 'read'):.3f} | {against_peer(row, peer):.3f} | {after_read}"
            f"{rate:.0f} | {row['worst_tile']:.1e} |"
        )
    return [*lines, ""]


def drawn(card: str = "h100") -> list[str]:
    """Problems drawn at random beside other libraries, once they were measured."""
    if not (RESULTS / f"drawn_{card}.json").is_file():
        return []
    result = load(f"drawn_{card}.json")
    lines = [
        "## Dense GEMM of problems drawn at random",
        "",
        f"Measured on {environment(result)}, by `benchmarks/drawn.py`, as",
        "above, L2 flushed by a write. No entry of a tuned file serves them, and nothing was chosen or fitted on them.",
        "Ratios are our time over the other's.",
        "",
        "| | m | / cuBLAS | / DeepGEMM | fastest of all |",
        "|---|---|--:|--:|--:|",
    ]
    for kind in ("fp8", "bf16"):
        for least, most in ROWS_DRAWN:
            rows = [row for row in result["rows"] if row["kind"] == kind and least <= row["m"] <= most]
            ours = sum(all(row["us_write"] <= row[f"{name}_us_write"] for name in libraries(row)) for row in rows)
            lines.append(
                f"| {kind} | {least} to {most} | {against(rows, 'cublas')} | {against(rows, 'deepgemm')} "
                f"| {ours} of {len(rows)} |"
            )
    lines += ["", "| | m | n | k | tile | us | / cuBLAS | / DeepGEMM |", "|---|--:|--:|--:|---|--:|--:|--:|"]
    for row in result["rows"]:
        cells = [against([row], name) for name in ("cublas", "deepgemm")]
        lines.append(
            f"| {row['kind']} | {row['m']} | {row['n']} | {row['k']} | {row['tile']} | {row['us_write']:.1f} | "
            f"{' | '.join(cells)} |"
        )
    return [*lines, ""]


ROWS_DRAWN = ((1, 16), (17, 128), (129, 16384))
"""Rows of problems drawn at random that are summed up together."""


SETS = {"listed": "those of benchmarks/shapes_tuned.txt", "random": "drawn at random, fitted to by nobody"}
MISSED = 1.05
"""Picks that take longer than this times the best are listed one by one."""


def bounds(rows: list[Row]) -> list[str]:
    """What bounds problems drawn at random, and how many are left of those with many rows."""
    found = {(row["m"], row["n"], row["k"]) for row in rows if row["set"] == "random"}
    if not found:
        return []
    many, most = (sum(m >= least for m, _, _ in found) for least in (1024, 4096))
    return [
        "Problems drawn at random have m log-uniform from 1 to 16384, n and k multiples of 64 up to 32768, and are",
        f"drawn again where m * n * k is more than 2^{MOST_PRODUCTS.bit_length() - 1} or a matrix has more than "
        f"2^{MOST_ELEMENTS.bit_length() - 1} elements, so few have",
        f"many rows: of {len(found)} problems {many} have m >= 1024, and {most} of these m >= 4096.",
    ]


def choice(card: str = "h100") -> list[str]:
    """How near picks are to the best candidate, once there is a measurement of all."""
    if not (RESULTS / f"selection_{card}.json").is_file():
        return []
    result = load(f"selection_{card}.json")
    rows = result["rows"]
    lines = [
        "## Choice of kernels",
        "",
        f"Measured on {environment(result)}, by `benchmarks/selection.py`:",
        "every candidate of every problem was checked and timed (w), and the ratio is the time of the rule's pick over",
        "the best candidate's. Entries of tuned files count for nothing here.",
        *bounds(rows),
        "",
        "| problems | operator | number | candidates | geometric mean | worst |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for group, operator in dict.fromkeys((row["set"], row["op"]) for row in rows):
        some = [row for row in rows if (row["set"], row["op"]) == (group, operator)]
        lines.append(
            f"| {SETS[group]} | `{operator}` | {len(some)} | {max(len(row['us']) for row in some)} | "
            f"{geomean(row['ratio'] for row in some):.3f} | {max(row['ratio'] for row in some):.3f} |"
        )
    lines += [
        "",
        f"Picks that take more than {MISSED} of the best:",
        "",
        "| operator | m | n | k | picked | us | best | us | ratio |",
        "|---|--:|--:|--:|---|--:|---|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: -row["ratio"]):
        if row["ratio"] > MISSED:
            picked, best = (row[name].partition("nt_bf16_")[2] for name in ("picked", "best"))
            us = row["us"][row["picked"]], row["us"][row["best"]]
            lines.append(
                f"| `{row['op']}` | {row['m']} | {row['n']} | {row['k']} | {picked} | {us[0]:.1f} | {best} | "
                f"{us[1]:.1f} | {row['ratio']:.3f} |"
            )
    return [*lines, ""]


def accuracy(card: str = "h100") -> list[str]:
    result = load(f"accuracy_{card}.json")
    lines = [
        "## Accuracy",
        "",
        f"Measured on {environment(result)}, by `benchmarks/accuracy.py`: m in 1, 7, 64, 65, 128, 129, 4096 times nine",
        "(n, k), with and without C, bf16 outputs poisoned first and framed by sentinel rows. The",
        "worst tile is the largest",
        "relative Frobenius error of a 64x64 tile against an fp32 product of the dequantised inputs",
        "(rounding to bf16 alone",
        "gives about 1.7e-3); calc_diff is 1 - 2<x, y> / (<x, x> + <y, y>).",
        "",
        "| kind | cases | worst tile | largest calc_diff | largest calc_diff against the product before quantisation |",
        "|---|--:|--:|--:|---|",
    ]
    for kind in ("fp8", "bf16"):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        worst = max(row["worst_tile"] for row in rows)
        diff = max(row["calc_diff"] for row in rows)
        lines.append(f"| {kind} | {len(rows)} | {worst:.2e} | {diff:.2e} | {unquantised(rows)} |")
    return [*lines, ""]


def unquantised(rows: list[Row]) -> str:
    """Outputs of very few elements stand apart: there the measure is the noise of quantisation itself."""
    known = [row for row in rows if "calc_diff_unquantised" in row]
    if not known:
        return "-"
    few = [row["calc_diff_unquantised"] for row in known if row["m"] * row["n"] < 64]
    many = [row["calc_diff_unquantised"] for row in known if row["m"] * row["n"] >= 64]
    return f"{max(many):.2e}; {max(few):.2e} where the output has fewer than 64 elements"


def over(row: Row, name: str, base: str) -> str:
    return f"{row[f'{name}_us'] / row[f'{base}_us']:.3f}"


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


GROUPED = {
    "fp8 contiguous": "FP8, padded rows by ids",
    "bf16 contiguous": "BF16, padded rows by ids",
    "fp8 masked": "FP8, masked, hundreds of rows a group",
    "fp8 masked, few rows": "FP8, masked, 20 rows a group",
    "fp8 k": "FP8, groups of k, added to fp32",
    "bf16 k": "BF16, groups of k, added to fp32",
}
FEW_ROWS = 32
"""Rows a group, on average, up to which a masked problem counts as one of few."""


def family(row: Row) -> str:
    """What a geometric mean is taken over."""
    few = row["form"] == "masked" and row["rows"] < FEW_ROWS * row["groups"]
    return f"{row['kind']} {row['form']}{', few rows' if few else ''}"


PEER_K = {
    "h100": "spill 44 to 68 bytes with that compiler",
    "h200": "were not launched: the driver refuses the shared memory they ask for",
}
"""What became of DeepGEMM's FP8 kernels of groups of k, by card."""


def grouped(card: str = "h100") -> list[str]:
    result = load(f"grouped_{card}.json")
    rows = [row | {"plain_us": row["us"]} for row in result["rows"]]
    lines = [
        "## Groups",
        "",
        f"Measured on {environment(result)}, by `benchmarks/grouped.py` through the public ops: medians in",
        "microseconds, calls interleaved, L2 flushed by a write before each. Speed over DeepGEMM's: its time over",
        f"ours, above 1 is faster ({result['deepgemm']}, in the same run;",
        f"its FP8 kernels of groups of k {PEER_K[card]}).",
        "cuBLAS: our time over that of one dense product of as many rows, or of all k, which is other work.",
        "Offsets and MXFP8 out: the time of the same real rows without padding, and of quantised outputs,",
        f"over the padded bf16 one's. A copy on the device ran at {result['copy_gb_s']:.0f} GB/s.",
        *([result["note"]] if "note" in result else []),
        "",
        "| | problems | speed over DeepGEMM's, geometric mean |",
        "|---|--:|--:|",
    ]
    for name, words in GROUPED.items():
        speeds = [row["deepgemm_us"] / row["us"] for row in rows if family(row) == name and "deepgemm_us" in row]
        lines += [f"| {words} | {len(speeds)} | {geomean(speeds):.3f} |"] if speeds else []
    lines += [
        "",
        "| | groups | rows or k | n | k, or m x n of gradients | tile | us | TFLOP/s | GB/s | / DeepGEMM's speed | "
        "/ cuBLAS | offsets | MXFP8 out |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        gradient = row["form"] == "k"
        size = ("", f"{row['n']} x {row['k']}") if gradient else (str(row["n"]), str(row["k"]))
        rate = 2 * row["rows"] * row["n"] * row["k"] / row["us"] / 1e6
        moved = "" if gradient else f"{bytes_of_rows(row) / row['us'] / 1e3:.0f}"
        extra = [over(row, name, "plain") if f"{name}_us" in row else "" for name in ("offsets", "mxfp8")]
        lines.append(
            f"| {family(row)} | {row['groups']} | {row['rows']} | {size[0]} | {size[1]} | {row['tile']} | "
            f"{row['us']:.1f} | {rate:.0f} | {moved} | "
            f"{over(row, 'deepgemm', 'plain') if 'deepgemm_us' in row else ''} | "
            f"{over(row, 'plain', 'cublas')} | {' | '.join(extra)} |"
        )
    return [*lines, ""]


def gradients(card: str = "h100") -> list[str]:
    result = load(f"gradients_{card}.json")
    lines = [
        "## Weight gradients",
        "",
        f"Measured on {environment(result)}, by `benchmarks/gradients.py`: `fp8_gemm_nt` with a",
        "scale for 1x128 of either factor, added to fp32 sums where they lie, and its time over that of a product of",
        "the same size with a scale for 128x128 of B, into bf16, in the same run. A sum is read and written where bf16",
        "is only written, and each of a tile's columns has its own scale.",
        *([result["note"]] if "note" in result else []),
        "",
        "| m | n | k | tile | us | TFLOP/s | / bf16 product |",
        "|--:|--:|--:|---|--:|--:|--:|",
    ]
    for row in result["rows"]:
        rate = 2 * row["m"] * row["n"] * row["k"] / row["us"] / 1e6
        lines.append(
            f"| {row['m']} | {row['n']} | {row['k']} | {row.get('tile', '')} | {row['us']:.1f} | {rate:.0f} | "
            f"{row['us'] / row['plain_us']:.3f} |"
        )
    return [*lines, ""]


def bytes_of_rows(row: Row) -> float:
    """Factors once and bf16 outputs once."""
    each = 1 if row["kind"] == "fp8" else 2
    return float(each * row["k"] * (row["groups"] * row["n"] + row["rows"]) + 2 * row["rows"] * row["n"])


def host(card: str = "h100") -> list[str]:
    result = load(f"host_{card}.json")
    rows = {row["call"]: row for row in result["rows"]}
    launch = rows["launch of an empty kernel"]["us"]
    lines = [
        "## Host time of a call",
        "",
        f"Measured on {environment(result)}, by `benchmarks/host.py`: one thread on one core, {result['what']}.",
        "The problems are so small that the GPU is faster than the host (*device*: the same calls, queued first).",
        "A launch of an empty kernel is the driver's part, and the floor; the rest of a call is ours.",
        "",
        "| call | us | least | device us | over the empty launch | / torch.mm |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| `{name}` | {row['us']:.2f} | {row['least_us']:.2f} | {row['device_us']:.2f} | "
            f"{row['us'] - launch:+.2f} | {row['us'] / rows['torch.mm']['us']:.2f} |"
        )
    return [*lines, ""]


def standing() -> list[str]:
    """Goals beside what was reached."""
    found = goals(load, geomean)
    return [
        "## Where it stands",
        "",
        "Goals for Hopper, geometric means unless a line names one problem, and what is in the way where a goal is not",
        f"reached: {sum(goal.reached for goal in found)} of {len(found)} are. DESIGN.md says what was tried.",
        "",
        "| | goal | reached | card | in the way |",
        "|---|--:|--:|---|---|",
        *(goal.line for goal in found),
        "",
        *cards.bars(load, geomean, peers(), found),
        *cards.drawn(load, "h200"),
    ]


def text() -> str:
    head = [
        "# Measured",
        "",
        "Written by `benchmarks/report.py` from `benchmarks/results/`. Large FP8 tiles with 128x128 scales have become",
        "faster since: their loops are copied out for whole rounds, scales of B come in strips, and what they sum is",
        "staged beside products; and so have tiles of which 33 rows or more lie past the end, which are not fetched.",
        "That was measured on [another card](performance_h200.md).",
        "",
    ]
    return (
        "\n".join(
            [
                *head,
                *standing(),
                *dense(),
                *grouped(),
                *gradients(),
                *chains(),
                *choice(),
                *fused(),
                *prenorm(),
                *reductions(),
                *host(),
                *accuracy(),
            ]
        ).rstrip()
        + "\n"
    )


def text_h200() -> str:
    """What was measured on an H200."""
    head = [
        "# Measured on an H200",
        "",
        "Written by `benchmarks/report.py` from `benchmarks/results/`. The chip is that of an H100, the memory faster.",
        "The rest of what was measured is in [performance.md](performance.md). Accuracy is from before products were",
        "staged apart. The host's time is from a day before the others, and gradients are from half an hour before,",
        "with the tuned file of then.",
        "",
    ]
    products = [*dense("h200"), *drawn("h200"), *grouped("h200"), *gradients("h200"), *chains("h200")]
    results = [*products, "", *fused("h200"), *prenorm("h200"), *choice("h200"), *host("h200"), *accuracy("h200")]
    return "\n".join([*head, *results]).rstrip() + "\n"


def pages() -> list[tuple[Path, str]]:
    """Documents, and what is to be in them."""
    return [(DOCUMENT, text()), (H200, text_h200())]


def write() -> None:
    """All of them."""
    for document, said in pages():
        document.write_text(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the document is not what the results say")
    check = parser.parse_args().check
    if not check:
        write()
        return
    for document, said in pages():
        if document.read_text() != said:
            raise SystemExit(f"{document} is stale; run python benchmarks/report.py")


if __name__ == "__main__":
    main()
