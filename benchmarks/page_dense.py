"""What pages say of dense products: the suite, problems drawn at random, choices of kernels, accuracy."""

from __future__ import annotations

from typing import Any

from bounds import MOST_ELEMENTS, MOST_PRODUCTS
from measured import RESULTS, Row, environment, geomean, load, peers


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
