"""The page that shows what the deletion campaign found: a table of kinds by kernels, and a note for every exception."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from .deletions import Deletion, Outcome
from .kernels import Timing

Outcomes = Mapping[str, Sequence[Outcome]]

INTRODUCTION = (
    "`python tests/sim/run_deletions.py` writes this page in a few minutes; a sample of it runs with the tests.",
    "Each synchronising or asynchronous instruction that a kernel executes is deleted from the PTX that NVRTC made, "
    "one at a time (a deleted wait counts as passed). The kernel then runs under {timings} until the simulator reports "
    "something or the output differs from the exact one: inputs are small integers and powers of two, so that every "
    "sum is exact and one wrong bit shows. The unedited kernels pass under all of these timings without a warning. "
    "Rings are cut to 2, 3 or 4 slots and a CTA walks several tiles, so that slots, phases and buffers come round. "
    "`setmaxnreg` and `griddepcontrol` are left out: registers are not simulated, and kernels that are launched early "
    "have planted mistakes of their own.",
    "A cell counts found deletions of all executed ones.",
)
TITLES = {
    "fp8": "FP8 128x128",
    "bf16_nn_c": "BF16 nn 64x64 with C",
    "fp8_pair": "FP8 128x128, cluster (2, 1)",
    "push": "FP8 64x32, a cluster shares K",
    "fp8_share": "FP8 64x32, CTAs share tiles",
    "fp8_partials": "FP8 64x16, two sets of partial sums",
    "sm100_fp8": "sm100 FP8 128x32",
    "sm100_pair": "sm100 FP8 256x32, 2 CTAs",
    "sm100_clc_pair": "sm100 BF16 256x32, 2 CTAs, launch control",
    "sm120_fp8": "sm120 FP8 32x32",
    "sm120_split": "sm120 FP8 16x16, split-K",
}
"""The kernels of the campaign, and what the page calls them."""
WARNED = (
    "The simulator does not call these faults, because kernels that are known to run on hardware do the same. It lists "
    "them in `report.warnings`."
)
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "bar.warp.sync",
        r"shares K #2$|share tiles #4$",
        "It stands behind lane 0's wait for a staging buffer. Each warp stores so little here that every buffer is "
        "filled for the first time.",
    ),
    (
        "wgmma fence",
        r"partial sums",
        "Registers of that product were read since the fence before it, and are overwritten. The simulator compares "
        "what products read with what registers held at the last fence; one that adds to nothing reads none.",
    ),
    (
        "bulk wait",
        r"share.* #1$",
        "It waits until a staging buffer is free. Each warp stores so little here that every buffer is filled for the "
        "first time.",
    ),
    (
        "bulk commit",
        r"share",
        "The only one of the warp: its copies are in no group that the last wait could wait for, so a CTA exits while "
        "the copy engine still reads its shared memory.",
    ),
    (
        "bar.warp.sync",
        r"shares K #[45]$",
        "It brings the loading warp together, whose lane 0 alone made barriers and copied, before the barrier of the "
        "CTA and before that of the cluster. In the simulator lanes advance together; PTX does not promise that.",
    ),
    (
        "cluster barrier",
        r"shares K #4$",
        "The loading warp's wait: it sends nothing to other CTAs, and the warps that multiply wait for the same.",
    ),
    (
        "mbarrier wait",
        r"shares K #3 on ab\.empty$",
        "That of a CTA's first K block, which finds every slot empty; it is the text of the others.",
    ),
    (
        "bar.warp.sync",
        r"launch control #1$",
        "It brings the warp together before the roles part, all lanes having read where tensor memory was allocated. "
        "The first barrier that lane 0 of the fetching warp arrives at says nothing of that.",
    ),
    (
        "bar.warp.sync",
        r"launch control #[69]$",
        "It stands between the lanes that read an answer and lane 0, which gives its slot back for all of them.",
    ),
    (
        "fence.proxy.async",
        r"launch control #[2-6]$",
        "A role has one behind its reads of an answer, and the thread that asks has one behind the arrivals of all "
        "roles and before what launch control writes there next: either orders them (a planted mistake deletes both).",
    ),
    (
        "bar.warp.sync",
        r"sm100.* #1$",
        "It brings the warp together before the roles part, and orders no access of one lane before another's.",
    ),
    (
        "bar.warp.sync",
        r"sm100.* #[2678]$",
        "It stands behind a wait of a whole warp and keeps its lanes together, so that none falls a phase behind. In "
        "the simulator lanes advance together; PTX does not promise that.",
    ),
    (
        "bar.warp.sync",
        r"sm100.*2 CTAs #10$",
        "It ends the transposition of A's scales; that of B's ends with another before lane 0 hands the slot on.",
    ),
    (
        "fence.proxy.async",
        r"sm100.*2 CTAs #2$",
        "It ends the transposition of A's scales; the fence behind B's covers both before the slot is handed on.",
    ),
    (
        "bar.warp.sync",
        r"sm100.* #3$",
        "It stands before lane 0 gives a slot of accumulators back. The whole warp executes tcgen05.wait::ld above at "
        "once, so no lane's load is outstanding by then.",
    ),
    (
        "bar.warp.sync",
        r"^FP8|^sm120.* #1$",
        "It stands between the lanes that read a slot (its scales on sm90) and lane 0, which releases it for all of "
        "them. Public kernels leave it out and rely on lanes that advance together; PTX does not promise that.",
    ),
    (
        "fence.proxy.async",
        r"^sm120.* #1$",
        "It orders a warp's reads of a slot before what the copy engine writes there next: an arrival does not wait "
        "for ldmatrix, and an H100 did overwrite what was yet to be read. The simulator reads at once, so no element "
        "is wrong there. Several public kernels get away without it.",
    ),
    (
        "bulk wait",
        "",
        "The last one of the kernel: a CTA exits while the copy engine still reads its shared memory. Public kernels "
        "leave it out, and no run on hardware is known to have shown harm.",
    ),
    (
        "fence.mbarrier_init",
        "cluster|2 CTAs",
        "Redundant here. It is a restricted form of the release that the cluster barrier after it makes anyway, at the "
        "same scope. Kernels without a cluster need it, and both share the text.",
    ),
    (
        "mbarrier wait",
        r"sm100.* #2 on sf\.empty",
        "A word of coarse scales serves 4 K blocks, so 4 slots last 16; the 4 slots of operands hold the loading "
        "thread back long before. With fewer slots it is needed (a planted mistake shows it).",
    ),
    (
        "mbarrier wait",
        r"sm100.* #(?:[4-9]|1\d) on (?:ab|sf)\.empty",
        "It lies behind the K loop of the loading thread, which stays until every slot is empty: arrivals of commits "
        "come to its shared memory. The commit of accumulators is issued after those of slots, and the storing warps "
        "wait for it; the simulator lets commits of one thread arrive in order, which PTX does not promise.",
    ),
    (
        "tcgen05.relinquish",
        "",
        "It allows other CTAs of the SM to allocate tensor memory. There is one CTA an SM, which needs it once.",
    ),
    (
        "tcgen05.fence::before",
        r"sm100.* #1$",
        "Behind tcgen05.alloc, which has taken effect when the barrier after it passes; nothing is in flight there.",
    ),
    (
        "tcgen05.fence::before",
        r"sm100.* #3$",
        "Before the last barrier: the loads of accumulators were waited for and fenced already, and the barrier orders "
        "tcgen05.dealloc, which is no asynchronous operation.",
    ),
    (
        "tcgen05.fence::after",
        r"launch control #5$|sm100.* #[16]$",
        "Behind the first and the last barrier of all warps. The roles have fences of their own behind the waits that "
        "they act on, and tcgen05.dealloc is ordered by the barrier.",
    ),
    (
        "tcgen05.fence::after",
        r"sm100.* #[3-5]$",
        "The issuing warp has one behind each of its waits, and one of them is enough: it must learn that the storing "
        "warps are done with a slot of accumulators, and every fence behind that wait tells it (a planted mistake "
        "deletes all of them). Its own copies and products run in order without.",
    ),
)
"""Kind, where (a regular expression on kernel and place), and why a deletion shows nothing, or a warning only."""
UNKNOWN = "No reason is known; a rule is missing in the simulator."


def page(outcomes: Outcomes, kinds: Sequence[str], timings: Sequence[Timing]) -> str:
    """The whole page in Markdown."""
    executed = {title: [each for each in found if each.executed] for title, found in outcomes.items()}
    every = [each for found in executed.values() for each in found]
    parts = [
        "# Deletions that the simulator finds",
        *(_wrapped(text.format(timings=_timings(timings))) for text in INTRODUCTION),
        _table(executed, kinds),
        "## What found them",
        _counts("report", Counter(_reporter(each) for each in every if each.found)),
        _counts("first found under", Counter(each.timing[0] for each in every if each.timing)),
        "## Found as a warning",
        _wrapped(WARNED),
        _notes(executed, lambda each: each.warned),
        "## Not found",
        _notes(executed, lambda each: not each.found),
    ]
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_on_hyphens=False)


def _timings(timings: Sequence[Timing]) -> str:
    modes = Counter(mode for mode, _ in timings)
    parts = [f"`{mode}`" + (f" with {count} seeds" if count > 1 else "") for mode, count in modes.items()]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _table(outcomes: Outcomes, kinds: Sequence[str]) -> str:
    rows = [f"| deleted | {' | '.join(outcomes)} |", f"|---|{'---|' * len(outcomes)}"]
    for kind in kinds:
        of_kind = [[each for each in found if each.deletion.kind == kind] for found in outcomes.values()]
        if any(of_kind):
            rows.append(f"| {kind} | {' | '.join(map(_score, of_kind))} |")
    rows.append(f"| all | {' | '.join(_score(found) for found in outcomes.values())} |")
    return "\n".join(rows)


def _score(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "-"
    return f"{sum(each.found for each in outcomes)}/{len(outcomes)}"


def _reporter(outcome: Outcome) -> str:
    return "warning" if outcome.warned else outcome.report.split(":", 1)[0]


def _counts(title: str, counts: Counter[str]) -> str:
    rows = [f"| {name} | {count} |" for name, count in counts.most_common()]
    return "\n".join([f"| {title} | deletions |", "|---|---|", *rows])


def reason(title: str, deletion: Deletion) -> str:
    """Why a deletion from a kernel is not found."""
    place = f"{title} {deletion.where}"
    return next((text for kind, at, text in REASONS if kind == deletion.kind and re.search(at, place)), UNKNOWN)


def _notes(outcomes: Outcomes, wanted: Callable[[Outcome], bool]) -> str:
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    for title, found in outcomes.items():
        for each in filter(wanted, found):
            key = each.deletion.kind, reason(title, each.deletion)
            places.setdefault(key, {}).setdefault(title, []).append(each.deletion.where)
    notes = []
    for (kind, text), titles in places.items():
        at = "; ".join(f"{title} {', '.join(wheres)}" for title, wheres in titles.items())
        notes.append(f"- {kind} ({at}): {text}")
    return "\n".join(_wrapped(note, "  ") for note in notes) or "Every deletion was found."
