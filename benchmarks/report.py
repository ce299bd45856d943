"""Writes docs/performance.md and docs/performance_h200.md from what was measured: no number in them is typed by hand.

python benchmarks/report.py [--check]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cards
import group_picks
from goals import goals
from measured import TOP, environment, geomean, load, peers
from page_dense import accuracy, choice, dense, drawn
from page_fused import chains, fused, prenorm, reductions
from page_groups import gradients, grouped

DOCUMENT = TOP / "docs" / "performance.md"
H200 = TOP / "docs" / "performance_h200.md"


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


def picks_of_groups() -> list[str]:
    """What the present rule picks for groups of rows, beside the fastest tile."""
    checked, alike = load(group_picks.CHECKED), load(group_picks.ALIKE)
    return [
        "## Choice of tiles for groups",
        "",
        f"Measured on {environment(load(group_picks.RESULT))}, by throwaway scripts, which looked at no results;",
        "judged by `benchmarks/group_picks.py`: the time of the tile that the present rule picks over that of the",
        "fastest, for problems drawn at random that no fit has seen. Groups have 3 to 6000 rows, alike to most",
        "uneven, and no rule knows how many each has. By ids rows of padding count.",
        "",
        *group_picks.table(),
        "",
        f"And {len(checked['rows'])} others, by `benchmarks/group_draws.py`, on {environment(checked)}.",
        f"All {sum(len(row[-1]) for row in checked['rows'])} kernels that were timed gave every group's right result.",
        "",
        *group_picks.table(group_picks.CHECKED),
        "",
        f"And {len(alike['rows'])} whose groups have as many rows each, by `benchmarks/group_draws.py --alike`, on",
        f"{environment(alike)}.",
        "",
        *group_picks.table(group_picks.ALIKE),
        "",
    ]


def standing() -> list[str]:
    """Goals beside what was reached."""
    found = goals(load, geomean)
    return [
        "## Where it stands",
        "",
        "Goals for Hopper, geometric means unless a line names one problem, and what is in the way where a goal is not",
        f"reached: {sum(goal.reached for goal in found)} of {len(found)} are. What was tried:",
        "[hopper.md](hopper.md).",
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
    results = [*products, "", *fused("h200"), *prenorm("h200"), *choice("h200"), *picks_of_groups()]
    results += [*host("h200"), *accuracy("h200")]
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
