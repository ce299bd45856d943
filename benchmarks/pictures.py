"""Pictures of the dense suites for docs/performance.md: a roofline, and bars of how much faster than cuBLAS.

    python benchmarks/pictures.py

Reads benchmarks/results/dense_*.json, writes docs/pictures/. Needs matplotlib: `pip install '.[bench]'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measured import TOP, geomean, load

PICTURES = TOP / "docs" / "pictures"
BYTES = {"fp8": 1, "bf16": 2}
PEAK = {"fp8": 1979.0, "bf16": 989.0}
"""TFLOP/s of the data sheets of both cards (SXM), dense."""
BANDWIDTH = {"h100": 3.35, "h200": 4.8}
"""TB/s, likewise."""
COLOURS = {64: "#1b9e77", 128: "#7570b3", 4096: "#d95f02", 8192: "#a6761d"}
INK, GRID = "#222222", "#d9d9d9"
Row = dict[str, Any]


def draw() -> None:
    """Both pictures of each card."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "axes.edgecolor": INK, "text.color": INK, "svg.hashsalt": "gemmgen"})
    PICTURES.mkdir(exist_ok=True)
    for card, bandwidth in BANDWIDTH.items():
        result = load(f"dense_{card}.json")
        _save(_roofline(result, bandwidth), PICTURES / f"roofline_{card}.png")
        _save(_bars(result), PICTURES / f"ratios_{card}.png")


def intensity(row: Row) -> float:
    """Operations for each byte that must move once: both factors and a bf16 result."""
    size = BYTES[row["kind"]]
    moved = size * row["k"] * (row["m"] + row["n"]) + 2 * row["m"] * row["n"]
    return float(2 * row["m"] * row["n"] * row["k"] / moved)


def rate(row: Row, us: float) -> float:
    """TFLOP/s."""
    return float(2 * row["m"] * row["n"] * row["k"] / us / 1e6)


def _roofline(result: dict[str, Any], bandwidth: float) -> Any:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.4), sharey=True)
    for panel, kind in zip(panels, BYTES, strict=True):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        knee, right = PEAK[kind] / bandwidth, 8000
        panel.plot([20, knee, right], [20 * bandwidth, PEAK[kind], PEAK[kind]], color=INK, linewidth=1.2, zorder=1)
        panel.text(24, 24 * bandwidth * 1.25, f"{bandwidth} TB/s", rotation=36, fontsize=8)
        panel.text(right * 0.95, PEAK[kind] * 1.07, f"{PEAK[kind]:.0f} TFLOP/s", ha="right", fontsize=8)
        for m, colour in COLOURS.items():
            some = [row for row in rows if row["m"] == m]
            at = [intensity(row) for row in some]
            peer = [rate(row, row["cublas_us_write"]) for row in some]
            panel.scatter(at, peer, s=26, facecolors="none", edgecolors=colour, linewidths=1, zorder=2)
            ours = [rate(row, row["us_write"]) for row in some]
            panel.scatter(at, ours, s=26, color=colour, zorder=3, label=f"m = {m}")
        panel.scatter([], [], s=26, facecolors="none", edgecolors=INK, label="cuBLAS (open)")
        panel.set(xscale="log", yscale="log", xlim=(20, right), ylim=(20, 3000), xlabel="FLOP per byte moved once")
        panel.set_title(f"{kind.upper()}{', 1x128 and 128x128 scales' if kind == 'fp8' else ''}", fontsize=10)
        panel.grid(True, which="major", color=GRID, linewidth=0.6)
    panels[0].set_ylabel("TFLOP/s")
    panels[1].legend(loc="lower right", fontsize=8, frameon=True)
    figure.suptitle(_title(result), fontsize=9)
    return figure


def _bars(result: dict[str, Any]) -> Any:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 1, figsize=(10, 6.4))
    for panel, kind in zip(panels, BYTES, strict=True):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        faster = [row["cublas_us_write"] / row["us_write"] for row in rows]
        panel.bar(range(len(rows)), faster, color=[COLOURS[row["m"]] for row in rows], width=0.75, zorder=2)
        panel.axhline(1, color=INK, linewidth=1, zorder=3)
        beside = [row["deepgemm_us_write"] / row["us_write"] for row in rows if "deepgemm_us_write" in row]
        if len(beside) == len(rows):
            panel.scatter(
                range(len(rows)), beside, s=16, marker="D", color=INK, zorder=4, label="DeepGEMM's time / ours"
            )
            panel.legend(loc="upper right", fontsize=8, bbox_to_anchor=(1, 1.14), frameon=False)
        for m in COLOURS:
            group = [index for index, row in enumerate(rows) if row["m"] == m]
            mean = geomean(faster[index] for index in group)
            middle = (group[0] + group[-1]) / 2
            panel.text(
                middle, 1.0, f"m = {m}: {mean:.2f}", ha="center", va="top", fontsize=9, zorder=4, transform=_top(panel)
            )
        panel.set_xticks(range(len(rows)), [f"{row['n']}x{row['k']}" for row in rows], rotation=90, fontsize=7)
        panel.set_ylim(0, max(faster + beside) * 1.16)
        panel.set_xlim(-0.7, len(rows) - 0.3)
        panel.set_ylabel(f"{kind.upper()}: cuBLAS's time / ours")
        panel.grid(True, axis="y", color=GRID, linewidth=0.6, zorder=0)
    figure.suptitle(f"Above 1 we are faster; numbers are geometric means. {_title(result)}", fontsize=9)
    return figure


def _top(panel: Any) -> Any:
    """x in data, y from the bottom (0) to just below the top (1) of the panel."""
    from matplotlib.transforms import Affine2D, blended_transform_factory

    return blended_transform_factory(panel.transData, Affine2D().scale(1, 0.97) + panel.transAxes)


def _title(result: dict[str, Any]) -> str:
    env = result["environment"]
    return f"{env['card']}, torch {env['torch']}, {env['date']}, L2 flushed by a write"


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw()
