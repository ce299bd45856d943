"""What of the benchmarks runs without a GPU: the page says what results say, problems are fixed, absences are said."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gemmgen import catalog
from gemmgen.commands.measuring import Measurement
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KernelSpec
from gemmgen.ops import spec_for
from gemmgen.ops.groups import Groups

TOP = Path(__file__).parents[1]
FOLDER = TOP / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield


TAKEN = {path.stem for path in (TOP / "tests").rglob("*.py")} | {"__main__"}
"""Names of modules that tests import, from one process with these."""


def module(name: str) -> ModuleType:
    """A module of the benchmarks, for nobody else where its name is taken."""
    if name not in TAKEN:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_says_what_the_results_say() -> None:
    report = module("report")
    assert report.DOCUMENT.read_text() == report.text(), "run python benchmarks/report.py"
    assert report.H200.read_text() == report.text_h200(), "run python benchmarks/report.py"


def test_held_back_problems_are_fixed_and_within_bounds() -> None:
    selection = module("selection")
    problems = selection.held_back()
    assert len(problems) == 40 and problems == selection.held_back()
    assert all(1 <= each.m <= 16384 and each.n % 64 == each.k % 64 == 0 for each in problems)
    assert max(each.m * each.n * each.k for each in problems) <= selection.MOST_PRODUCTS == 2**38
    many, most = (sum(each.m >= least for each in problems) for least in (1024, 4096))
    assert f"of the 40 problems {many} have m >= 1024, and {most} of these m >= 4096" in selection.__doc__


def test_the_page_says_how_many_drawn_problems_have_many_rows() -> None:
    page = module("page_dense")
    rows = [{"set": "random", "op": op, "m": m, "n": 64, "k": 64} for op in ("a", "b") for m in (1, 2000, 5000)]
    assert page.bounds(rows)[-1] == "many rows: of 3 problems 2 have m >= 1024, and 1 of these m >= 4096."
    assert page.bounds([{**row, "set": "listed"} for row in rows]) == []


def test_deepgemm_after_a_read_has_a_column_where_it_was_in_the_run() -> None:
    page = module("page_dense")
    row = {"kind": "fp8", "m": 64, "n": 576, "k": 7168, "tile": "64x32", "worst_tile": 1e-3}
    times = {"us": 8.0, "cublas_us": 9.0, "deepgemm_us": 10.0}
    row |= {f"{name}_{flush}": us for name, us in times.items() for flush in ("write", "read")}
    row["deepgemm_us_read"] = 16.0
    assert page.summary("fp8", [row], {})[2:5:2] == [
        "| m | / cuBLAS (w) | / cuBLAS (r) | / DeepGEMM (w) | / DeepGEMM (r) |",
        "| 64 | 0.889 | 0.889 | 0.800 | 0.500 |",
    ]
    head, _, line = page.table("fp8", [row], {})[2:5]
    assert head.split(" | ")[8:10] == ["/ DeepGEMM (w)", "/ DeepGEMM (r)"] and line.split(" | ")[8:10] == [
        "0.800",
        "0.500",
    ]
    del row["deepgemm_us_read"]
    assert "DeepGEMM (r)" not in "".join(page.summary("fp8", [row], {}) + page.table("fp8", [row], {}))


def test_both_cards_stand_beside_the_goals() -> None:
    """Numbers short of a goal are in italics; what was not measured is blank; a placed peer is by way of cuBLAS."""
    cards = module("cards")
    bar = cards.Bar("what", 1.1, (1.2, 1.0996, None, 1.05))
    assert bar.line == "| what | at least 1.10 | 1.200 | 1.100 |  | *1.050* |"
    assert cards.Bar("us", 5.0, (5.1, 4.0), more=False).line == "| us | at most 5.00 | *5.100* | 4.000 |"
    report, goals = module("report"), module("goals")
    found = goals.goals(report.load, report.geomean)
    lines = "\n".join(cards.bars(report.load, report.geomean, report.peers(), found))
    for goal in found[:5]:
        assert f"| {goal.what} | at least {goal.goal:.2f} | " in lines
        assert f"{goal.value:.3f}" in lines


def test_problems_that_another_library_is_faster_at_are_counted() -> None:
    cards = module("cards")
    rows = [
        {"kind": kind, "m": m, "n": 64, "k": 128, "us_write": us, "cublas_us_write": 10.0, "deepgemm_us_write": 10.0}
        for kind in ("fp8", "bf16")
        for m, us in ((1, 10.2), (2, 10.4), (3, 12.0))
    ]
    lines = cards.drawn(lambda name: {"rows": rows}, "h200")
    assert "| | problems | more than 3 % slower | worst time over theirs | m x n x k |" in lines
    assert "| FP8 over DeepGEMM | 3 | 2 | 1.200 | 3 x 64 x 128 |" in lines


H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


@pytest.mark.parametrize(("name", "file"), [(H100, "dense_h100.json"), (H200, "dense_h200.json")])
def test_results_go_to_the_file_of_the_card(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the suite alone, and of the command that writes pages behind it."""
    dense, command, measured = module("dense"), module("__main__"), module("measured")
    written: list[Path] = []
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--few"])
    monkeypatch.setattr(dense, "card", lambda: name)
    monkeypatch.setattr(command, "card", lambda: name)
    monkeypatch.setattr(dense, "suite", lambda path, *_: written.append(path))
    dense.main()
    command.main()
    assert written == 2 * [measured.RESULTS / file]


def test_a_card_without_a_file_of_results_is_told_to_name_one() -> None:
    environment = module("environment")
    with pytest.raises(SystemExit, match=r"no file for results of NVIDIA A100.*HBM3, NVIDIA H200; name one"):
        environment.results_of("dense", "NVIDIA A100")


def test_results_of_another_card_are_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dense, file = module("dense"), tmp_path / "dense.json"
    kept = json.dumps({"environment": {"card": H100}, "rows": []})
    file.write_text(kept)
    monkeypatch.setattr(dense, "card", lambda: H200)
    monkeypatch.setattr(dense, "compile_first", lambda problems: pytest.fail("was not refused"))
    with pytest.raises(SystemExit, match=rf"has results of {H100}, which those of {H200} would replace; name another"):
        dense.suite(file, 1, [(64, 64, 128)])
    assert file.read_text() == kept


SUITES = ("accuracy", "chains", "fused", "gradients", "grouped", "host", "layout", "prenorm", "reductions")


@pytest.mark.parametrize("suite", [*SUITES, "forms", "selection"])
def test_no_suite_replaces_results_of_another_card(suite: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each says so before it measures anything."""
    found, file = module(suite), tmp_path / f"{suite}.json"
    kept = json.dumps({"environment": {"card": H100, "sms": "132"}, "rows": []})
    file.write_text(kept)
    words = ["fp8_gemm_nt", FEW, "--problems", "none"] if suite == "forms" else []
    monkeypatch.setattr(sys, "argv", [suite, *words, "--json", str(file)])
    monkeypatch.setattr(found, "card", lambda: H200)
    with pytest.raises(SystemExit, match=rf"--json .*{suite}.json: has results of {H100}, which those of {H200} would"):
        found.main()
    assert file.read_text() == kept


@pytest.mark.parametrize("suite", ["gradients", "grouped"])
def test_without_a_name_results_go_to_the_file_of_the_card(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = module(suite), list[tuple[Path, str]]()

    def ended(path: Path, name: str) -> None:
        asked.append((path, name))
        raise SystemExit

    monkeypatch.setattr(sys, "argv", [suite])
    monkeypatch.setattr(found, "card", lambda: H200)
    monkeypatch.setattr(found, "keep_apart", ended)
    with pytest.raises(SystemExit):
        found.main()
    assert asked == [(module("environment").RESULTS / f"{suite}_h200.json", H200)]


def test_what_writes_results_looks_again_whose_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For a suite that does not ask before."""
    environment, file = module("environment"), tmp_path / "new_suite.json"
    file.write_text(json.dumps({"environment": {"card": H100}}))
    monkeypatch.setattr(environment, "card", lambda: H200)
    with pytest.raises(SystemExit, match=f"has results of {H100}"):
        environment.write(file, [])


def test_pages_take_a_card_s_results_from_its_own_file_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = module("measured")
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    for name, card in (("host_h200.json", H200), ("host_h100.json", H200), ("peers_h100.json", None)):
        (tmp_path / name).write_text(json.dumps({"environment": {"card": card}} if card else {}))
    assert measured.load("host_h200.json") == {"environment": {"card": H200}} and measured.load("peers_h100.json") == {}
    with pytest.raises(SystemExit, match=rf"host_h100.json: has results of {H200}, and its name says {H100}; measure"):
        measured.load("host_h100.json")


def test_times_of_another_card_are_not_merged(tmp_path: Path) -> None:
    """Lines from before they said a card are of any."""
    selection, fit, times = module("selection"), module("fit"), tmp_path / "times.jsonl"
    name = catalog.fp8_gemm_nt(catalog.FP8_SHAPES[0]).name
    row = {"op": "fp8_gemm_nt", "m": 64, "n": 2112, "k": 7168, "us": {name: 8.0}}
    times.write_text(json.dumps(row) + "\n" + json.dumps({"card": H200, **row}) + "\n")
    assert len(selection.listed(times, H200)) == 2 and len(fit.read(times, to_fit=True)) == 2
    with pytest.raises(SystemExit, match=rf"--listed .*times of {H200}, and they would go with those of {H100}; name"):
        selection.listed(times, H100)
    times.write_text(json.dumps({"card": H100, **row}) + "\n")
    assert len(fit.read(times)) == 1
    with pytest.raises(SystemExit, match=rf"times .*of {H100}, and they would go with those of {H200}; judge by them"):
        fit.read(times, to_fit=True)
    whole = tmp_path / "selection_h100.json"
    whole.write_text(json.dumps({"environment": {"card": H100}, "rows": [row]}))
    with pytest.raises(SystemExit, match=f"has times of {H100}"):
        fit.read(whole, to_fit=True)


def test_results_of_the_same_card_or_of_none_are_replaced(tmp_path: Path) -> None:
    environment, file = module("environment"), tmp_path / "dense.json"
    environment.keep_apart(file, H200)
    for text in ("", "[]", '{"rows": []}', json.dumps({"environment": {"card": H200}})):
        file.write_text(text)
        environment.keep_apart(file, H200)


def test_versions_of_libraries_are_kept_where_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    environment, measured = module("environment"), module("measured")

    def found(name: str) -> ModuleType:
        if name == "triton":
            raise OSError("does not load")
        library = ModuleType(name)
        library.__dict__["__version__"] = "2.6.1"
        return library

    monkeypatch.setattr(environment, "import_module", found)
    versions = environment.versions.__wrapped__()
    assert versions == {"deep_gemm": "2.6.1"}
    before = {"card": H200, "sms": "132", "nvrtc": "13.0", "torch": "2.11", "date": "2026-11-30"}
    lines = [measured.environment({"environment": {**before, **more}}) for more in ({}, versions)]
    assert lines[0] == "NVIDIA H200 (132 SMs), NVRTC 13.0, torch 2.11, 2026-11-30"
    assert lines[1] == "NVIDIA H200 (132 SMs), NVRTC 13.0, torch 2.11, DeepGEMM 2.6.1, 2026-11-30"


def test_a_pick_is_judged_by_the_times_that_were_measured() -> None:
    selection = module("selection")
    names = [catalog.fp8_gemm_nt(shape).name for shape in catalog.FP8_SHAPES]
    row = {
        "set": "listed",
        "op": "fp8_gemm_nt",
        "m": 64,
        "n": 2112,
        "k": 7168,
        "us": dict.fromkeys(names, 10.0) | {names[-1]: 8.0},
    }
    judged = selection.judged(row, 132)
    assert (judged["best"], judged["ratio"]) == (names[-1], 1.25) and judged["picked"] != names[-1]


@pytest.mark.parametrize(("name", "most"), [("group_picks_h200.json", 1.02), ("group_draws_h200.json", 1.03)])
def test_groups_have_the_tiles_that_operators_pick_for_them_and_lose_little(name: str, most: float) -> None:
    """2 or 3 % over the fastest in the mean; the first tile or the last one, always taken, more than 5."""
    judge, rows = module("group_picks"), json.loads((FOLDER / "results" / name).read_text())["rows"]
    found = list(judge.picks(rows))
    assert module("measured").geomean(each.ratio for each in found) < most
    for last in (0, -1):
        naive = [list(times.values())[last] / min(times.values()) for *_, times in rows]
        assert module("measured").geomean(naive) > 1.05
    groups = {"ids": Groups("ids", 128), "ends": Groups("ends"), "counts": Groups("counts")}
    asked = 0
    for (form, kind, count, total, n, k, times), pick in zip(rows[::10], found[::10], strict=True):
        given = {"groups": groups[form], "group_count": count}
        spec = spec_for(f"{kind}_gemm_nt", -(-total // count), n, k, 132, **given)
        name = re.search(r"\d+x\d+(_swap)?(_c21)?", spec.name)
        assert name is not None
        if name[0] in times and not any(each.endswith(judge.KEPT) for each in times):
            assert pick.ratio == times[name[0]] / min(times.values())
            asked += 1
    assert asked > 20


FEW, WALKS = "Shape(8, 128, unroll=1, splits=4, swap=True)", "Shape(64, 96, groups=1, stream=True)"


def test_new_tiles_are_read_as_they_stand_in_the_catalog() -> None:
    forms = module("forms")
    assert forms.shape_of(FEW) == catalog.Shape(8, 128, unroll=1, splits=4, swap=True)
    for text in ("Shape(8, m)", "print(8)", "8"):
        with pytest.raises(ValueError, match=r"malformed node|is no tile; write Shape\(64, 128, groups=1\), as in"):
            forms.shape_of(text)


def test_new_tiles_have_names_of_their_own_and_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    forms = module("forms")
    made = forms.specs_of("bf16_gemm_nt", [FEW, "Shape(16, 256, swap=True, splits=2)", WALKS])
    assert list(made) == [FEW, WALKS] and not {spec.name for spec in made.values()} & set(catalog.specs())
    assert "Shape(16, 256, swap=True, splits=2) is left out: " in capsys.readouterr().out


def test_new_tiles_are_listed_by_what_they_gain_beside_each_other() -> None:
    """The second gains most after the first, though the third is faster where both gain; the fourth gains nothing."""
    forms = module("forms")
    times = ({"a": 5.0, "c": 6.0}, {"b": 9.0, "c": 10.0}, {"d": 11.0})
    rows = [{"shipped": {"x": 10.0, "y": 12.0}, "new": new} for new in times]
    found = forms.gains(rows)
    assert [name for name, _, _ in found] == ["a", "b"]
    assert found[0][1:] == (pytest.approx(0.5 ** (1 / 3)), 0.5) and found[1][2] == 0.9


def test_a_problem_has_the_times_of_right_kernels_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = module("forms")

    def measure(specs: Sequence[KernelSpec], sizes: Sizes, seed: int, flush: object) -> list[Measurement]:
        return [Measurement(spec, 10.0 - at / 10, 0.5 if at == 0 else 1e-3, 6e-3) for at, spec in enumerate(specs)]

    monkeypatch.setattr(forms, "measure", measure)
    row = forms.measured("fp8_gemm_nt", Sizes(8, 2112, 7168), forms.specs_of("fp8_gemm_nt", [WALKS]), 132, None)
    assert len(row["shipped"]) == forms.BESIDE - 1 and row["new"] == {WALKS: 10.0 - forms.BESIDE / 10}
    assert "WRONG" in capsys.readouterr().out
    assert forms.line(row).endswith(f"x{row['new'][WALKS] / min(row['shipped'].values()):.3f} {WALKS}")
    assert forms.line({**row, "new": {}}).endswith("xinf nothing")


def test_the_fit_asks_the_rule_that_calls_ask() -> None:
    """The same costs in the same order, so that among equals the same one is taken; loss is what selection judges."""
    fit, selection = module("fit"), module("selection")
    for op, names in (("fp8_gemm_nt", catalog.FP8_SHAPES), ("bf16_gemm_nt", catalog.BF16_SHAPES)):
        make = catalog.fp8_gemm_nt if op == "fp8_gemm_nt" else partial(catalog.bf16_gemm, "nt")
        us = {make(shape).name: 10.0 + at for at, shape in enumerate(names)}
        row = {"set": "listed", "op": op, "m": 200, "n": 2112, "k": 7168, "us": us}
        timed = fit.Timed.of(row)
        asked = selection.rule(op, Sizes(200, 2112, 7168), fit.SMS).candidates
        assert [cost.terms for cost, _ in timed.costs()] == [each.cost.terms for each in asked]
        assert math.exp(fit.lost(timed.costs())) == pytest.approx(selection.judged(row, fit.SMS)["ratio"], rel=1e-3)


def test_the_fit_may_find_the_constants_that_ship() -> None:
    fit = module("fit")
    for place in fit.constants():
        least, most = fit.WITHIN.get(place[0], (0, math.inf))
        assert least <= fit.get(place) <= most, place


def test_a_library_that_is_not_there_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, problem = module("peers"), module("problem")
    one = problem.Problem("bf16", torch.ones(2, 4), torch.ones(3, 4))
    monkeypatch.setattr(problem.Problem, "output", lambda self: torch.full((2, 3), float("nan")))
    adapters: dict[str, Any] = {"nothing": ("no_such_library", None), "cublas": peers.ADAPTERS["cublas"]}
    monkeypatch.setattr(peers, "ADAPTERS", adapters)
    (found,), missing = peers.peers(one)
    assert missing == {"nothing": "nothing is left out: No module named 'no_such_library'"}
    found.call()
    assert found.name == "cublas" and torch.equal(found.output(), one.expected)


def test_rooflines_count_what_must_move_once() -> None:
    pictures = module("pictures")
    row = {"kind": "fp8", "m": 64, "n": 128, "k": 256}
    assert pictures.intensity(row) == 2 * 64 * 128 * 256 / (256 * (64 + 128) + 2 * 64 * 128)
    assert pictures.rate(row, 2.0) == pytest.approx(2 * 64 * 128 * 256 / 2e-6 / 1e12)


def test_pictures_are_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = sorted((TOP / "docs" / "pictures").glob("*.png"))
    names = [f"{what}_{card}.png" for what in ("ratios", "roofline") for card in ("h100", "h200")]
    assert [path.name for path in shipped] == names
    assert all(path.stat().st_size < 200_000 for path in shipped)
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    pictures = module("pictures")
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    pictures.draw()
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_drawn_groups_are_the_same_by_seed_and_fit() -> None:
    draws = module("group_draws")
    drawn = [draws.drawn(seed) for seed in range(draws.FIRST_SEED, draws.FIRST_SEED + 200)]
    assert drawn == [draws.drawn(seed) for seed in range(draws.FIRST_SEED, draws.FIRST_SEED + 200)]
    assert {form for form, _ in drawn} == {"ids", "ends", "counts"} and {case.kind for _, case in drawn} == {
        "fp8",
        "bf16",
    }
    for form, case in drawn:
        assert len(case.counts()) == case.groups and min(case.counts()) >= 1 and max(case.counts()) <= draws.CAPACITY
        assert len(draws.near(form, case, draws.rows_known(form, case))) >= 1
