"""The launches of tests/gpu/test_stress.py, without a GPU: they reach every kernel, are made, and are written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from agreement import digest
from fake_gpu import FakeGpu, install
from stress_calls import Factors, call, expected, worst_tile
from stress_plan import COUNT, LEAST, NAMED, Launch, counts, does_its_part, drawn, forms, shipped, spec_of
from stress_record import RESULT, Record

import gemmgen
from gemmgen.ops import hot_call

SMS = 132
SINCE = {
    f"sm90_bf16_gemm_nt_bf16_{tile}"
    for tile in ("128x208", "192x128", "256x160", "136x128_swap", "176x128_swap", "144x256_swap")
}
"""Tiles that ship since the run that is kept; each ran on a GPU in test_shipped_kernels.py and agreement.py."""
ENVIRONMENT = {"card": "NVIDIA H200", "sms": SMS, "date": "2026-12-01", "torch": "2.11", "nvrtc": "13.0", "driver": "1"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    yield install(monkeypatch)
    hot_call.forget()


@pytest.mark.parametrize("sms", [132, 114, 78])
def test_every_kernel_and_form_is_reached(sms: int) -> None:
    """On Hopper cards of other sizes too."""
    launches = drawn(sms)
    reached = counts(launches, sms, None)
    assert launches == drawn(sms) and len(launches) == COUNT
    assert reached.missing == [] and reached.rare == {}
    assert sum(reached.named.values()) + sum(reached.early.values()) == NAMED
    assert sum(reached.by_operator.values()) == COUNT - NAMED
    assert min(reached.forms.values()) >= LEAST


def test_named_kernels_get_problems_that_their_schedules_are_for() -> None:
    named = [each for each in drawn(SMS) if each.kernel is not None]
    for each in named:
        spec = each.taken(SMS, None)
        assert does_its_part(spec, each.m, each.n, each.k, SMS) and spec.programmatic_launch == each.early
        assert bool(each.n % 8) == ("_direct_" in spec.name)
    cut = spec_of("sm90_fp8_gemm_nt_bf16_128x192_cut3", False)
    assert does_its_part(cut, 128, 192 * 133, 512, SMS) and not does_its_part(cut, 128, 192 * 131, 512, SMS)
    shared = spec_of("sm90_bf16_gemm_nt_bf16_128x128_share", False)
    assert does_its_part(shared, 128, 128, 512, SMS) and not does_its_part(shared, 128, 128, 64, SMS)


def test_forms_say_what_a_kernel_stands_for() -> None:
    assert forms(spec_of("sm90_fp8_gemm_nt_bf16_8x128_swap_s4_x2", True)) == (
        "cluster_split_k, 4",
        "swapped, cluster_split_k",
        "2 CTAs an SM",
        "early",
        "early, weights read ahead",
    )
    assert forms(spec_of("sm90_bf16_gemm_nt_bf16_direct_64x128", False)) == ("persistent", "direct store")
    assert forms(spec_of("sm90_bf16_gemm_nt_bf16_72x192_swap_share", True)) == ("split_k", "swapped, split_k", "early")


def test_what_is_not_reached_is_said() -> None:
    launches = [each for each in drawn(SMS) if each.kernel is None or "cut" not in each.kernel]
    reached = counts(launches, SMS, None)
    assert reached.missing == ["sm90_fp8_gemm_nt_bf16_128x192_cut3"]
    assert reached.rare == {"cut_remainder": 0, "cut_remainder, behind full waves": 0}


def test_each_launch_is_of_the_kernel_that_it_is_counted_for(gpu: FakeGpu) -> None:
    """All of a call but the driver, so that no layout, pitch or name is refused on a GPU."""
    factors, launches = Factors.random("cpu"), drawn(SMS)
    for each in launches:
        gpu.launches.clear()
        call(each, factors, torch.empty(each.m, each.n, dtype=torch.bfloat16))
        (made,) = gpu.launches
        spec = each.taken(gpu.sms, gpu.card)
        assert (made.entry, made.programmatic) == (spec.name, spec.programmatic_launch), each


@pytest.mark.parametrize(
    "launch",
    [
        Launch(True, 20, 40, 300),
        Launch(False, 20, 40, 300),
        Launch(True, 9, 136, 640, "sm90_fp8_gemm_nt_bf16_8x128_swap_s4_x2", early=True),
        Launch(False, 33, 104, 600, "sm90_bf16_gemm_nt_bf16_64x96_share"),
        Launch(True, 70, 131, 200, "sm90_fp8_gemm_nt_bf16_direct_64x128", early=True),
    ],
    ids=str,
)
def test_results_are_held_against_what_the_factors_stand_for(launch: Launch) -> None:
    factors = Factors.random("cpu", 128, 256, 768)
    d = torch.full((launch.m, launch.n), torch.nan, dtype=torch.bfloat16)
    with gemmgen.simulate("sm90"):
        call(launch, factors, d)
    wanted = expected(launch, factors)
    assert worst_tile(d, wanted, launch.k) < 6e-3 < worst_tile(d.roll(1, 1), wanted, launch.k)
    d[-1, -1] = torch.nan
    assert not worst_tile(d, wanted, launch.k) < 6e-3


# ------------------------------------------------------------------------------------------------ the file


def test_the_file_says_what_ran_and_how_each_test_ended(tmp_path: Path) -> None:
    record = Record(tmp_path / "stress.json", ENVIRONMENT, drawn(SMS))
    with record.of("passes"):
        assert json.loads(record.path.read_text())["tests"]["passes"]["result"] == "did not end"
    with pytest.raises(AssertionError), record.of("fails"):
        raise AssertionError("of two\nlines")
    written = json.loads(record.path.read_text())
    assert {name: each["result"] for name, each in written["tests"].items()} == {
        "passes": "passed",
        "fails": "failed: AssertionError: of two",
    }
    assert written["environment"] == ENVIRONMENT and written["launches"] == COUNT
    assert [row["kernel"] for row in written["kernels"]] == list(shipped())
    assert written["taken_by_operators"] == sum(row["by_operator"] > 0 for row in written["kernels"])
    assert sum(row["named"] + row["early"] + row["by_operator"] for row in written["kernels"]) == COUNT
    name, spec = next(iter(shipped().items()))
    assert written["kernels"][0]["digest"] == digest(spec) and written["kernels"][0]["kernel"] == name


def test_without_a_path_nothing_is_written() -> None:
    with Record(None, ENVIRONMENT, ()).of("passes"):
        pass


def test_another_card_s_file_is_not_replaced(tmp_path: Path) -> None:
    record = Record(tmp_path / "stress.json", ENVIRONMENT, drawn(SMS))
    with record.of("passes"):
        pass
    kept = record.path.read_text()
    with pytest.raises(ValueError, match=r"has what ran on .*, which another would replace; name another file"):
        Record(record.path, {**ENVIRONMENT, "card": "another"}, ())
    assert record.path.read_text() == kept


def test_the_file_that_is_kept_has_every_kernel_that_shipped_then_and_every_test_passed() -> None:
    result = json.loads(RESULT.read_text())
    assert set(shipped()) >= SINCE
    assert {row["kernel"] for row in result["kernels"]} == set(shipped()) - SINCE
    assert all(row["named"] and row["early"] for row in result["kernels"])
    assert {name: each["result"] for name, each in result["tests"].items()} == dict.fromkeys(
        (
            "launches back to back end",
            "every result is right",
            "repeats are bitwise equal",
            "two streams at once give the same bits",
        ),
        "passed",
    )
    assert result["environment"]["card"] == "NVIDIA H200"
    assert {"card", "date", "driver", "nvrtc", "torch"} <= set(result["environment"])
    assert min(result["forms"].values()) >= LEAST
