"""What of the benchmarks runs without a GPU: the page says what results say, problems are fixed, absences are said."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gemmgen import catalog
from gemmgen.commands.targets import Sizes

TOP = Path(__file__).parents[1]
FOLDER = TOP / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_the_page_says_what_the_results_say() -> None:
    report = module("report")
    assert report.DOCUMENT.read_text() == report.text(), "run python benchmarks/report.py"
    assert report.H200.read_text() == report.text_h200(), "run python benchmarks/report.py"


def test_held_back_problems_are_fixed_and_within_bounds() -> None:
    selection = module("selection")
    problems = selection.held_back()
    assert len(problems) == 40 and problems == selection.held_back()
    assert all(1 <= each.m <= 16384 and each.n % 64 == each.k % 64 == 0 for each in problems)
    assert max(each.m * each.n * each.k for each in problems) <= selection.MOST_PRODUCTS


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
