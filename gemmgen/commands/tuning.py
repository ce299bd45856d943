"""``gemmgen tune``: measures every kernel that could serve some problems on the GPU here, and keeps the fastest.

Knows the selection, measurements and tuned files. What was stored before is not measured again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen.catalog import FINISHED
from gemmgen.commands.inputs import k_step
from gemmgen.commands.output import deliver, progress
from gemmgen.commands.place import Place, gpu_here, stores_directly
from gemmgen.commands.targets import Sizes
from gemmgen.ops.choice_prenorm import PRENORM
from gemmgen.ops.family import Selection
from gemmgen.ops.selection import NAME_FORMS, NAMES, Choices, reads_ahead, select
from gemmgen.ops.tuned.file import CardEntries, Entry, TunedFile, read
from gemmgen.runtime.timing import FLUSH_KINDS

if TYPE_CHECKING:
    from gemmgen.commands.measuring import Measurement

AS_FAST = 1.01
"""A kernel of the rule's that takes no more than this times the fastest is kept: less is noise."""
READING_AHEAD = 1.06
"""How much longer a kernel may take by itself that reads weights ahead: chains gain 6 to 12 % by its early launch."""
Problems = dict[int, Sizes]
"""Problems by the line of the file that they are from."""


def tune(
    operator: str, shapes: Path, output: Path, again: bool, times: Path | None, seed: int, flush: str = "write"
) -> None:
    """Measure each problem of the file, storing after each, and report; raises when a kernel was wrong.

    ``times`` gets a line of JSON for each problem, with the microseconds of every right kernel. ``flush`` says whether
    L2 is full of lines that were written or read before each launch.

    Raises ``ValueError`` on an unknown operator, a malformed file or another ``flush``, ``RuntimeError`` without a GPU.
    """
    if operator == PRENORM or operator not in NAMES:
        raise ValueError(f"operator: {operator!r} has no tiles to tune; use {NAME_FORMS}")
    if flush not in FLUSH_KINDS:
        raise ValueError(f"--flush: {flush!r} is no way to flush L2; use {' or '.join(FLUSH_KINDS)}")
    problems = read_shapes(shapes)
    kept = read(output) if output.exists() else TunedFile()
    here = gpu_here()
    if here is None or here.card is None:
        raise RuntimeError(
            "tune measures on a GPU that there are kernels for, and torch finds none; run it on a machine with one. "
            "`gemmgen explain` shows what the rule expects without any"
        )
    if str(output) == "-":
        raise ValueError("--output '-': what is measured is kept after every problem; name a file")
    selections = {line: _selection(operator, sizes, here, shapes, line) for line, sizes in problems.items()}
    todo = {line: sizes for line, sizes in problems.items() if again or not _is_kept(kept, here, operator, sizes)}
    if len(todo) < len(problems):
        _say(f"{len(problems) - len(todo)} problems are in {output} already; --again measures them anew")
    _compile([selections[line] for line in todo])
    wrong: list[str] = []
    for line in progress(list(todo), "measuring"):
        sizes, selection = problems[line], selections[line]
        found = _measured(selection, sizes, seed, flush)
        wrong += [_fault(each, sizes) for each in found if not each.right]
        if times is not None:
            _append(times, here, operator, sizes, found)
        if (entry := _entry(operator, sizes, found, selection)) is not None:
            kept = kept.with_entries(_on(here, (entry,), flush))
            deliver(kept.text(), output)
            _say(_line(entry))
    _say(summary([each for each in _entries(kept, here) if _is_asked(each, operator, problems.values())], output))
    if wrong:
        raise ValueError(f"{len(wrong)} results were wrong, and are not stored:\n" + "\n".join(wrong))


def read_shapes(path: Path) -> Problems:
    """Problems of a file with m, n and k on each line, apart by blanks or commas; ``#`` starts a comment."""
    if not path.is_file():
        raise FileNotFoundError(f"--shapes {path}: there is no such file; write m n k on each line")
    problems: Problems = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 3 or not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            raise ValueError(f"--shapes {path}, line {number}: {line.strip()!r} is not m n k, three positive numbers")
        problems[number] = Sizes(*map(int, words))
    if not problems:
        raise ValueError(f"--shapes {path}: has no problems; write m n k on each line")
    return problems


def summary(entries: Sequence[Entry], output: Path) -> str:
    """How far the rule's picks are from the fastest."""
    if not entries:
        return "nothing was stored"
    ratios = [each.rule_us / each.us for each in entries]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    worst = max(entries, key=lambda each: each.rule_us / each.us)
    return (
        f"{len(entries)} problems in {output}: the rule's kernel takes {mean:.3f} of the fastest one's time (geometric "
        f"mean), {max(ratios):.2f} at worst (m={worst.m} n={worst.n} k={worst.k})"
    )


def _selection(operator: str, sizes: Sizes, here: Place, shapes: Path, line: int) -> Selection:
    """The rule's, whatever entries say."""
    choices = Choices(arch=here.arch, direct_store=stores_directly(sizes.n))
    found = Selection.of(select(operator, sizes.m, sizes.n, sizes.k, here.sms, choices).candidates)
    if sizes.k % (step := k_step(found.picked.spec)):
        raise ValueError(f"--shapes {shapes}, line {line}: k={sizes.k} is no multiple of {step}, as {operator} needs")
    return found


def _compile(selections: Iterable[Selection]) -> None:
    """Every kernel to a binary in the disk cache, with as many threads as there are cores."""
    from gemmgen.ops.kernels import kernel_of
    from gemmgen.runtime.parallel import compile_texts
    from gemmgen.runtime.targets import gpu

    specs = dict.fromkeys(each.spec for selection in selections for each in selection.candidates)
    texts = [kernel_of(spec).text for spec in specs]
    done = compile_texts(texts, gpu().architecture)
    for _ in progress(range(len(texts)), "compiling"):
        next(done)


def _measured(selection: Selection, sizes: Sizes, seed: int, flush: str) -> list[Measurement]:
    """Every candidate on the GPU, in their order; the rule's is timed as long as the closest, as it is kept by that."""
    from gemmgen.commands import measuring
    from gemmgen.runtime.timing import Flush

    specs = [each.spec for each in selection.candidates]
    return measuring.measure(specs, sizes, seed, Flush(flush), compared=selection.index)


def _entry(operator: str, sizes: Sizes, found: Sequence[Measurement], selection: Selection) -> Entry | None:
    """What to keep for a problem: nothing where the rule's kernel is wrong, with which nobody should go on.

    Kernels of a product with a bias or an activation go by the product's name: a bias of another type is behind the
    same tile.
    """
    by_rule, fastest = found[selection.index], min(found, key=lambda each: each.us)
    if not by_rule.right:
        return None
    if by_rule.us <= AS_FAST * fastest.us:
        fastest = by_rule
    early = [each for each in found if each.right and reads_ahead(each.spec) and each.us <= READING_AHEAD * fastest.us]
    ahead = min(early, key=lambda each: each.us, default=fastest)
    name = {each.spec: each.product if operator in FINISHED else each.spec.name for each in selection.candidates}
    return Entry(
        op=operator,
        m=sizes.m,
        n=sizes.n,
        k=sizes.k,
        kernel=name[fastest.spec],
        us=round(fastest.us, 2),
        rule=name[by_rule.spec],
        rule_us=round(by_rule.us, 2),
        ahead=None if ahead is fastest else name[ahead.spec],
    )


def _fault(found: Measurement, sizes: Sizes) -> str:
    return (
        f"{found.spec.name} at m={sizes.m} n={sizes.n} k={sizes.k}: worst tile error {found.error:.2e}, rounding "
        f"explains {found.allowed:.0e}"
    )


def _append(times: Path, here: Place, operator: str, sizes: Sizes, found: Sequence[Measurement]) -> None:
    """A line that says on which card, so that times of several are not taken for those of one."""
    us = {each.spec.name: round(each.us, 2) for each in found if each.right}
    row = {"card": here.card, "op": operator, "m": sizes.m, "n": sizes.n, "k": sizes.k, "us": us}
    with times.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def _on(here: Place, entries: tuple[Entry, ...], flush: str) -> CardEntries:
    assert here.card is not None
    import torch

    from gemmgen.runtime.nvrtc import nvrtc_version

    nvrtc = ".".join(map(str, nvrtc_version()))
    environment = {"date": date.today().isoformat(), "torch": str(torch.__version__), "nvrtc": nvrtc, "flush": flush}
    return CardEntries(card=here.card, sms=here.sms, arch=here.arch, environment=environment, entries=entries)


def _entries(kept: TunedFile, here: Place) -> tuple[Entry, ...]:
    found = kept.of(here.card or "", here.sms)
    return found.entries if found else ()


def _is_kept(kept: TunedFile, here: Place, operator: str, sizes: Sizes) -> bool:
    return any(_is_asked(each, operator, (sizes,)) for each in _entries(kept, here))


def _is_asked(entry: Entry, operator: str, problems: Iterable[Sizes]) -> bool:
    return entry.op == operator and Sizes(entry.m, entry.n, entry.k) in problems


def _line(entry: Entry) -> str:
    gain = "" if entry.kernel == entry.rule else f", where {entry.rule} takes {entry.rule_us:.1f}"
    early = f"; launched early: {entry.ahead}" if entry.ahead else ""
    return f"{entry.m:6} {entry.n:6} {entry.k:6}  {entry.us:8.1f} us  {entry.kernel}{gain}{early}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
