"""What pages say of groups, and of gradients, which many of them are."""

from __future__ import annotations

from measured import Row, environment, geomean, load, over

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


PEER_K = {"h100": ";\nits FP8 kernels of groups of k spill 44 to 68 bytes with that compiler"}
"""What became of DeepGEMM's FP8 kernels of groups of k, by card."""


def grouped(card: str = "h100") -> list[str]:
    result = load(f"grouped_{card}.json")
    rows = [row | {"plain_us": row["us"]} for row in result["rows"]]
    lines = [
        "## Groups",
        "",
        f"Measured on {environment(result)}, by `benchmarks/grouped.py` through the public ops: medians in",
        "microseconds, calls interleaved, L2 flushed by a write before each. Speed over DeepGEMM's: its time over",
        f"ours, above 1 is faster ({result['deepgemm']}, in the same run{PEER_K.get(card, '')}).",
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
