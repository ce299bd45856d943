"""What the project wants of a Hopper GPU, what it has reached, and what is in the way, as a table of a page.

Values come from `benchmarks/results/`; goals and reasons are ours. Every line says which way is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Load = Callable[[str], dict[str, Any]]
Mean = Callable[[Iterable[float]], float]
EPILOGUE = "a tile's epilogue runs on the warps that multiply"
POWER = "both run at the card's power"
PADDED = "1.024 to 1.039 in four runs of the same kernels, those by ends 1.022 in the first of them"
ANYWHERE = "one of 14 problems"
FILLED = "a group's last tile is partly empty"


@dataclass(frozen=True)
class Goal:
    """A line of the table. ``more`` says that the value shall be at least the goal; ``why`` is for where it is not.

    ``beside`` is said in either case.
    """

    what: str
    goal: float
    value: float
    card: str
    why: str
    more: bool = True
    beside: str = ""

    @property
    def reached(self) -> bool:
        """Whether the value, as it is printed, is as good as the goal."""
        value = round(self.value, 3)
        return value >= self.goal if self.more else value <= self.goal

    @property
    def line(self) -> str:
        """Of the table."""
        sign = "at least" if self.more else "at most"
        why = "; ".join(filter(None, ("" if self.reached else self.why, self.beside)))
        return f"| {self.what} | {sign} {self.goal:.2f} | {self.value:.3f} | {self.card} | {why} |"


def goals(load: Load, mean: Mean) -> list[Goal]:
    """All of them, dense products first."""
    return [*_dense(load, mean), *_behind(load, mean), *_groups(load, mean)]


def _worst(rows: list[Row]) -> str:
    """Which problem is the slowest beside DeepGEMM after a write flush, and what it is after a read flush."""
    row = max(rows, key=lambda row: row["us_write"] / row["deepgemm_us_write"])
    read = row["deepgemm_us_read"] / row["us_read"]
    return f"{row['m']} x {row['n']} x {row['k']} after a write flush; {read:.3f} after a read flush"


def _dense(load: Load, mean: Mean) -> list[Goal]:
    rows = load("dense_h200.json")["rows"]
    fp8, bf16 = ([row for row in rows if row["kind"] == kind] for kind in ("fp8", "bf16"))

    def speed(some: list[Row], peer: str = "deepgemm") -> list[float]:
        return [row[f"{peer}_us_write"] / row["us_write"] for row in some]

    by_m = {m: [row for row in fp8 if row["m"] == m] for m in (64, 128)}
    large = [row for row in fp8 if row["m"] >= 4096]
    streams = "the rate of device memory, and 7 us of launch, first bytes and last ones"
    promoted = "sums of a K block are scaled by the warps that multiply; cuBLAS has one scale a tensor"
    found = [
        Goal("FP8, m = 64: speed over DeepGEMM's", 1.15, mean(speed(by_m[64])), "H200", streams),
        Goal("FP8, m = 128", 1.08, mean(speed(by_m[128])), "H200", streams),
        Goal("FP8, m of 4096 and more", 1.04, mean(speed(large)), "H200", EPILOGUE),
        Goal("FP8, all", 1.08, mean(speed(fp8)), "H200", "those above"),
        Goal("FP8, the worst problem", 0.97, min(speed(fp8)), "H200", _worst(fp8)),
    ]
    for m, goal in ((64, 1.10), (128, 1.05)):
        found.append(Goal(f"FP8, m = {m}: over cuBLAS's", goal, mean(speed(by_m[m], "cublas")), "H200", streams))
    found += [
        Goal("FP8, m of 4096 and more: over cuBLAS's", 0.96, mean(speed(large, "cublas")), "H200", promoted),
        Goal("BF16: over cuBLAS's", 1.03, mean(speed(bf16, "cublas")), "H200", ""),
        Goal(
            "BF16, the worst problem",
            0.97,
            min(speed(bf16, "cublas")),
            "H200",
            "m of 4096, n of 2112: two full waves of 192x176, whose loop is slower than that of 128x256",
        ),
    ]
    chained = [row for row in load("chains_h200.json")["rows"] if row["kind"] == "fp8"]
    for m, goal in ((64, 1.30), (128, 1.20)):
        some = [row["deepgemm_us"] / row["programmatic_us"] for row in chained if row["m"] == m]
        found.append(Goal(f"FP8, m = {m}, chains of launches: over DeepGEMM's", goal, mean(some), "H200", streams))
    picks = [row["ratio"] for row in load("selection_h200.json")["rows"] if row["set"] == "random"]
    found += [
        Goal("picks for problems drawn at random: time over the best's", 1.04, mean(picks), "H200", "", False),
        Goal("... the worst of them", 1.25, max(picks), "H200", "", False),
    ]
    gradients = [row["us"] / row["plain_us"] for row in load("gradients_h200.json")["rows"]]
    each = "a scale for each column doubles what promotion takes; sums of fp32 are read and written"
    found.append(Goal("FP8 weight gradients: time over the product's", 1.10, mean(gradients), "H200", each, more=False))
    host = {row["call"]: row["us"] for row in load("host_h100.json")["rows"]}
    eager, empty = host["ops.fp8_gemm_nt, d given"], host["launch of an empty kernel"]
    launch = f"the driver's launch of an empty kernel is {empty:.1f} of them there"
    call = "an eager call of `fp8_gemm_nt`, output given: microseconds"
    return [*found, Goal(call, 5.0, eager, "H100", launch, more=False)]


def _behind(load: Load, mean: Mean) -> list[Goal]:
    rows = load("fused_h200.json")["rows"]

    def over(name: str) -> float:
        return mean(row[f"{name}_us"] / row["bf16_us"] for row in rows)

    slow = "exponentials and reciprocals, 16 a cycle, while the tensor core waits"
    beside = (row for row in load("prenorm_h200.json")["rows"] if row["deepgemm_us"])
    worst = min(beside, key=lambda row: row["deepgemm_us"] / row["us"])
    prenorm = worst["deepgemm_us"] / worst["us"]
    how = f"in {worst['splits']} slices" if worst["splits"] else "summed up"
    more = f"{worst['us'] - worst['deepgemm_us']:.1f} us of {worst['us']:.0f}, of which a launch is 4"
    few = f"m of {worst['m']} and k of {worst['k']} {how}: {more}"
    return [
        Goal("MXFP8 out: time over bf16 out", 1.03, over("mxfp8"), "H200", EPILOGUE, more=False),
        Goal("... over product and quantiser compiled, called", 1.34, _compiled(rows, mean, "chain"), "H200", ""),
        Goal("... and replayed", 1.15, _compiled(rows, mean, "graph"), "H200", ""),
        Goal("bias and relu: time over the product's", 1.02, over("bias_relu"), "H200", EPILOGUE, more=False),
        Goal("... with a bias of bf16, not fp32", 1.02, over("bf16_bias_relu"), "H200", EPILOGUE, more=False),
        Goal("bias and silu", 1.02, over("bias_silu"), "H200", slow, more=False),
        Goal("bias and gelu with erf", 1.02, over("bias_gelu"), "H200", slow, more=False),
        Goal("prenorm, the worst problem: speed over DeepGEMM's", 1.0, prenorm, "H200", few),
    ]


def _compiled(rows: list[Row], mean: Mean, how: str) -> float:
    return mean(row[f"{how}_compiled_us"] / row[f"{how}_us"] for row in rows)


def _groups(load: Load, mean: Mean) -> list[Goal]:
    rows = load("grouped_h200.json")["rows"]

    def some(form: str, kind: str, few: bool = False) -> list[Row]:
        found = [row for row in rows if (row["form"], row["kind"]) == (form, kind)]
        return [row for row in found if form != "masked" or (row["rows"] < 32 * row["groups"]) == few]

    def speed(found: list[Row]) -> float:
        return mean(row["deepgemm_us"] / row["us"] for row in found)

    padded = some("contiguous", "fp8")
    gradients = speed([row for row in rows if row["form"] == "k"])
    apart = max(row["offsets_us"] / row["us"] for row in rows if "offsets_us" in row)
    quantised = mean(row["mxfp8_us"] / row["us"] for row in padded)
    scales = "FP8: a scale for each column, as above"
    return [
        Goal("FP8, groups of padded rows: speed over DeepGEMM's", 1.03, speed(padded), "H200", POWER, beside=PADDED),
        Goal("BF16, groups of padded rows", 1.03, speed(some("contiguous", "bf16")), "H200", POWER),
        Goal("FP8, masked, hundreds of rows", 1.05, speed(some("masked", "fp8")), "H200", FILLED),
        Goal("FP8, masked, 20 rows", 1.03, speed(some("masked", "fp8", few=True)), "H200", ""),
        Goal("groups of k, FP8 and BF16", 1.08, gradients, "H200", scales),
        Goal("rows right behind one another: time over padded", 1.03, apart, "H200", ANYWHERE, more=False),
        Goal("MXFP8 out of groups: time over bf16 out", 1.03, quantised, "H200", EPILOGUE, more=False),
    ]
