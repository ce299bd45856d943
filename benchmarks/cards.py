"""Goals of `goals.py` on both cards and after both flushes of L2, and problems drawn at random, as tables of a page.

Values come from `benchmarks/results/`. m = 4096 and m = 8192 alone have no goals of their own: they are held to that of
both together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from goals import Goal, Load, Mean, Row

Peers = dict[tuple[str, int, int, int], float]
"""DeepGEMM's time over cuBLAS's by problem."""
Some = Callable[[Row], bool]
Fold = Callable[[list[float]], float]
CARDS, FLUSHES = ("h200", "h100"), ("write", "read")
LARGE = (4096, 8192)
SLOWER = 1.03
"""Problems drawn at random that take longer than this times another library's time are counted."""


@dataclass(frozen=True)
class Bar:
    """A line of the table: values of the H200 and then the H100, each after a write and after a read, None where there
    is none."""

    what: str
    goal: float
    values: tuple[float | None, ...]
    more: bool = True

    @property
    def line(self) -> str:
        """Of the table."""
        cells = " | ".join("" if value is None else self._shown(value) for value in self.values)
        return f"| {self.what} | {'at least' if self.more else 'at most'} {self.goal:.2f} | {cells} |"

    def _shown(self, value: float) -> str:
        """Values that are short of the goal are in italics."""
        printed = round(value, 3)
        reached = printed >= self.goal if self.more else printed <= self.goal
        return f"{value:.3f}" if reached else f"*{value:.3f}*"


@dataclass(frozen=True)
class Cards:
    """What was measured, and the goals by their words."""

    load: Load
    mean: Mean
    peers: Peers
    chained: Peers
    """DeepGEMM's microseconds a launch, of a run on an H100 that was not ours."""
    goals: dict[str, float]
    rows: dict[str, list[Row]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", {card: self.load(f"dense_{card}.json")["rows"] for card in CARDS})

    def bars(self) -> list[Bar]:
        """All of them, dense products first."""
        return [*self._deepgemm(), *self._cublas(), *self._chains(), *self._picks(), *self._calls()]

    def _deepgemm(self) -> list[Bar]:
        return [
            self._bar("FP8, m = 64: speed over DeepGEMM's", "deepgemm", _of("fp8", 64)),
            self._bar("FP8, m = 128", "deepgemm", _of("fp8", 128)),
            *self._large("FP8, m of 4096 and more", "deepgemm"),
            self._bar("FP8, all", "deepgemm", _of("fp8")),
            self._bar("FP8, the worst problem", "deepgemm", _of("fp8"), min),
        ]

    def _cublas(self) -> list[Bar]:
        return [
            self._bar("FP8, m = 64: over cuBLAS's", "cublas", _of("fp8", 64)),
            self._bar("FP8, m = 128: over cuBLAS's", "cublas", _of("fp8", 128)),
            *self._large("FP8, m of 4096 and more: over cuBLAS's", "cublas"),
            self._bar("BF16: over cuBLAS's", "cublas", _of("bf16")),
            self._bar("BF16, the worst problem", "cublas", _of("bf16"), min),
        ]

    def _large(self, what: str, peer: str) -> list[Bar]:
        alone = [self._bar(what, peer, _of("fp8", m), words=f"... m = {m} alone") for m in LARGE]
        return [self._bar(what, peer, _of("fp8", *LARGE)), *alone]

    def _bar(self, what: str, peer: str, some: Some, fold: Fold | None = None, words: str = "") -> Bar:
        speeds = [self._speeds(card, peer, flush, some) for card in CARDS for flush in FLUSHES]
        values = tuple((fold or self.mean)(each) if each else None for each in speeds)
        return Bar(words or what, self.goals[what], values)

    def _speeds(self, card: str, peer: str, flush: str, some: Some) -> list[float]:
        """The other library's time over ours; by way of cuBLAS where DeepGEMM was not in the run."""
        rows = [row for row in self.rows[card] if some(row)]
        if all(f"{peer}_us_{flush}" in row for row in rows):
            return [row[f"{peer}_us_{flush}"] / row[f"us_{flush}"] for row in rows]
        if (peer, flush) != ("deepgemm", "write"):
            return []
        return [self.peers[_problem(row)] * row["cublas_us_write"] / row["us_write"] for row in rows]

    def _chains(self) -> list[Bar]:
        rows = {card: self.load(f"chains_{card}.json")["rows"] for card in CARDS}

        def value(card: str, m: int) -> float:
            some = filter(_of("fp8", m), rows[card])
            return self.mean(self._chained(row) / row["programmatic_us"] for row in some)

        words = {m: f"FP8, m = {m}, chains of launches: over DeepGEMM's" for m in (64, 128)}
        return [Bar(what, self.goals[what], _of_cards(*(value(c, m) for c in CARDS))) for m, what in words.items()]

    def _chained(self, row: Row) -> float:
        return float(row["deepgemm_us"] if "deepgemm_us" in row else self.chained[_problem(row)])

    def _picks(self) -> list[Bar]:
        drawn, worst = "picks for problems drawn at random: time over the best's", "... the worst of them"
        listed = "picks for the problems of `benchmarks/shapes_tuned.txt`"
        found = []
        for group, what in (("random", drawn), ("listed", listed)):
            every = [
                [row["ratio"] for row in self.load(f"selection_{card}.json")["rows"] if row["set"] == group]
                for card in CARDS
            ]
            means = _of_cards(*(self.mean(each) if each else None for each in every))
            most = _of_cards(*(max(each, default=None) for each in every))
            found += [Bar(what, self.goals[drawn], means, False), Bar(worst, self.goals[worst], most, False)]
        return found

    def _calls(self) -> list[Bar]:
        host = [{row["call"]: row["us"] for row in self.load(f"host_{card}.json")["rows"]} for card in CARDS]
        given = "an eager call of `fp8_gemm_nt`, output given: microseconds"
        calls = {given: "ops.fp8_gemm_nt, d given", "... not given": "ops.fp8_gemm_nt"}
        return [
            Bar(what, self.goals[given], _of_cards(*(each[call] for each in host)), False)
            for what, call in calls.items()
        ]


def _of(kind: str, *sizes: int) -> Some:
    """Rows of a type, and of any m or one of these."""
    return lambda row: row["kind"] == kind and (not sizes or row["m"] in sizes)


def _problem(row: Row) -> tuple[str, int, int, int]:
    return row["kind"], row["m"], row["n"], row["k"]


def _of_cards(h200: float | None, h100: float | None) -> tuple[float | None, ...]:
    """Values that no flush of L2 goes before."""
    return h200, None, h100, None


def bars(load: Load, mean: Mean, peers: Peers, found: list[Goal]) -> list[str]:
    """Lines of the table of both cards."""
    dates = {load(f"{name}_h100.json")["environment"]["date"] for name in ("dense", "chains", "selection", "host")}
    earlier = " and ".join(sorted(dates))
    chained = {("fp8", r["m"], r["n"], r["k"]): r["deepgemm_us"] for r in load("peers_h100.json")["chains"]}
    cards = Cards(load, mean, peers, chained, {goal.what: goal.goal for goal in found})
    return [
        "### On both cards, and after a read",
        "",
        "Some of these goals again, as far as measured; a number in italics is short of its goal. Dense products are",
        f"timed behind a write or a read of 256 MiB. What ran on the H100 are kernels of {earlier}, since replaced by",
        "faster ones; DeepGEMM was not in its runs: there its place is found as under *Dense GEMM* and *Chains of",
        "launches* below, which have every problem.",
        "",
        f"| | goal | H200, write | H200, read | H100 of {earlier}, write | read |",
        "|---|--:|--:|--:|--:|--:|",
        *(bar.line for bar in cards.bars()),
        "",
        "In the way of few rows over cuBLAS after a read: L2 is clean then, so a hint that saves written lines from",
        "being written back gains nothing, and both libraries run near the rate of device memory (hopper.md, *How near",
        "that is to the stream alone*). With m of 4096 and more FP8 leads DeepGEMM most where DeepGEMM's tiles leave a",
        "wave part empty, n of 576 and 2112 with m = 8192; else both run at the card's power, or a tile's epilogue",
        "runs on the warps that multiply. Beside cuBLAS it pays for promotion, as above.",
        "",
    ]


def drawn(load: Load, card: str) -> list[str]:
    """Lines of a table that counts problems drawn at random which another library is faster at."""
    rows = load(f"drawn_{card}.json")["rows"]
    lines = [
        "### Where another library is faster",
        "",
        f"Of problems drawn at random ({card.upper()}, after a write; every one is in",
        "[performance_h200.md](performance_h200.md)). cuBLAS's FP8 has one scale a tensor, which is less work.",
        "",
        f"| | problems | more than {round(100 * (SLOWER - 1))} % slower | worst time over theirs | m x n x k |",
        "|---|--:|--:|--:|---|",
    ]
    for kind in ("bf16", "fp8"):
        for peer, name in (("cublas", "cuBLAS"), ("deepgemm", "DeepGEMM")):
            some = [row for row in rows if row["kind"] == kind and f"{peer}_us_write" in row]
            ratios = [row["us_write"] / row[f"{peer}_us_write"] for row in some]
            slower, most = sum(each > SLOWER for each in ratios), max(ratios)
            m, n, k = _problem(some[ratios.index(most)])[1:]
            lines.append(f"| {kind.upper()} over {name} | {len(some)} | {slower} | {most:.3f} | {m} x {n} x {k} |")
    return [*lines, ""]
