"""``explain``: every candidate with terms that add up, the one taken and why, and sentences for wrong words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmgen import catalog, ops
from gemmgen.commands import place
from gemmgen.ir import Arch
from gemmgen.ops import choice, tuned
from gemmgen.ops.tuned.file import CardEntries, Entry, TunedFile

Command = Callable[..., Any]
PROBLEM = ("-m", 64, "-n", 2112, "-k", 7168)


def test_every_tile_has_a_line_and_the_cheapest_is_taken(gemmgen: Command) -> None:
    done = gemmgen("explain", "fp8_gemm_nt", *PROBLEM, "--all")
    lines = done.out.splitlines()
    assert done.status == 0 and "\x1b" not in done.out
    assert lines[0] == "fp8_gemm_nt, m=64 n=2112 k=7168, D in bf16, on sm90 with 132 SMs"
    table = lines[3 : 3 + len(catalog.FP8_SHAPES)]
    taken = ops.spec_for("fp8_gemm_nt", 64, 2112, 7168, 132).name
    assert {line.split()[0] for line in table} == {catalog.fp8_gemm_nt(each).name for each in catalog.FP8_SHAPES}
    assert [line.split()[0] for line in table if line.endswith("<- rule")] == [taken] == [table[0].split()[0]]
    times = [float(line.split()[1]) for line in table]
    assert times == sorted(times)
    assert lines[-1].startswith(f"{taken}: the cheapest by the rule, and ") and " more for " in lines[-1]


def test_the_cheapest_are_shown_and_how_many_there_are_beside(gemmgen: Command) -> None:
    every = gemmgen("explain", "fp8_gemm_nt", *PROBLEM, "--all").out.splitlines()
    lines = gemmgen("explain", "fp8_gemm_nt", *PROBLEM).out.splitlines()
    table, more, _, why = lines[3:15], *lines[15:]
    assert [line.split()[:2] for line in table] == [line.split()[:2] for line in every[3:15]]
    costliest = every[2 + len(catalog.FP8_SHAPES)].split()[1]
    assert more == f"and {len(catalog.FP8_SHAPES) - 12} more, up to {costliest} us; --all shows them"
    assert why == every[-1]


@pytest.mark.parametrize(
    ("operator", "arch"), [("fp8_gemm_nt", "sm90"), ("mxfp4_gemm_nt", "sm100"), ("bf16_gemm_tn", "sm120")]
)
def test_terms_add_up(gemmgen: Command, operator: str, arch: str) -> None:
    found = json.loads(gemmgen("explain", operator, *PROBLEM, "--arch", arch, "--json").out)
    assert (found["arch"], found["card"], found["decided_by"]) == (arch, None, "rule")
    launch = choice.LAUNCH_US if arch == "sm90" else 0
    assert found["unit"] == ("us" if arch == "sm90" else "cost")
    for each in found["candidates"]:
        assert each["total"] == pytest.approx(launch + sum(each["terms"].values()), abs=0.02)
    assert found["kernel"] == found["candidates"][0]["kernel"] and found["kernel"] in found["why"]


@pytest.mark.parametrize(("card", "own"), [("NVIDIA H200", True), ("NVIDIA H100 80GB HBM3", False)])
def test_another_card_is_told_whose_constants_the_times_are_by(gemmgen: Command, card: str, own: bool) -> None:
    head, caution = gemmgen("explain", "fp8_gemm_nt", *PROBLEM, "--card", card).out.splitlines()[:2]
    assert head.endswith(f"on {card} with 132 SMs")
    said = f"Costs in us are by constants fitted to an NVIDIA H200: on {card} they only compare tiles."
    assert caution == ("" if own else said)
    assert json.loads(gemmgen("explain", "fp8_gemm_nt", *PROBLEM, "--card", card, "--json").out)["fitted_on"] == (
        "NVIDIA H200"
    )


def test_a_card_that_is_found_is_told_so_too(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    found = place.Place(Arch.SM90, 114, "NVIDIA H100 PCIe")
    monkeypatch.setattr(place, "gpu_here", lambda: found)
    lines = gemmgen("explain", "fp8_gemm_nt", *PROBLEM).out.splitlines()
    assert lines[0].endswith("on NVIDIA H100 PCIe with 114 SMs") and "fitted to an NVIDIA H200" in lines[1]


def test_what_has_no_constants_of_a_card_says_nothing_of_one(gemmgen: Command) -> None:
    words = ("explain", "mxfp4_gemm_nt", *PROBLEM, "--arch", "sm100", "--card", "some GPU")
    assert "fitted" not in gemmgen(*words).out and json.loads(gemmgen(*words, "--json").out)["fitted_on"] is None


def test_fused_operators_have_the_tiles_that_take_their_epilogue(gemmgen: Command) -> None:
    found = json.loads(gemmgen("explain", "fp8_gemm_nt_mxfp8out", *PROBLEM, "--json").out)
    assert len(found["candidates"]) > 1
    assert all(each["kernel"].startswith("sm90_fp8_gemm_nt_mxfp8out_") for each in found["candidates"])


@pytest.mark.parametrize("arch", [None, "sm100", "sm120"])
def test_a_product_with_a_bias_and_an_activation_is_explained(gemmgen: Command, arch: str | None) -> None:
    words = ("explain", "fp8_gemm_nt_bias_relu", *PROBLEM, *(("--arch", arch) if arch else ()))
    found = json.loads(gemmgen(*words, "--json").out)
    assert found["operator"] == "fp8_gemm_nt_bias_relu" and found["arch"] == (arch or "sm90")
    assert len(found["candidates"]) > 1
    assert all("_bf16_bias_f32_relu_" in each["kernel"] for each in found["candidates"])
    assert gemmgen(*words).out.startswith("fp8_gemm_nt_bias_relu, m=64 n=2112 k=7168, D in bf16, on ")


def test_a_measured_entry_is_said_to_have_decided(
    gemmgen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = "sm90_fp8_gemm_nt_bf16_256x128"
    rule = "sm90_fp8_gemm_nt_bf16_64x16"
    entry = Entry(op="fp8_gemm_nt", m=60, n=2112, k=7168, kernel=kernel, us=9.5, rule=rule, rule_us=12.5)
    card = CardEntries(card="some GPU", sms=132, arch="sm90", entries=(entry,))
    (tmp_path / "mine.json").write_text(TunedFile().with_entries(card).text())
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path / "mine.json"))
    done = gemmgen("explain", "fp8_gemm_nt", *PROBLEM, "--card", "some GPU")
    assert [line.split()[0] for line in done.out.splitlines() if line.endswith("<- measured")] == [kernel]
    assert done.out.splitlines()[-1] == (
        f"{kernel}: measured, by mine.json for m=60: 9.5 us, where the rule's {rule} took 12.5 us."
    )


@pytest.mark.parametrize("form", ["fp8_gemm_nt_contiguous", "bf16_gemm_nt_masked", "fp8_gemm_nt_contiguous_mxfp8out"])
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_products_of_groups_are_explained_by_one_group(gemmgen: Command, form: str, arch: str) -> None:
    """The kernel is the one that other commands take by the operator's name."""
    words = (f"m_grouped_{form}", "-m", 512, "-n", 4096, "-k", 2048, "--arch", arch)
    done = gemmgen("explain", *words)
    assert done.status == 0 and f"m_grouped_{form}, one group of m=512 rows, n=4096" in done.out, done.err
    taken = next(line.split()[0] for line in done.out.splitlines() if line.endswith("<- rule"))
    assert gemmgen("plan", *words).out.startswith(f"{taken}: ")


def test_an_operator_that_takes_another_ones_kernels_is_explained_by_those(gemmgen: Command) -> None:
    head, plain = (gemmgen("explain", name, "-m", "64") for name in ("fp8_gemm_nt_skip_head_mid", "fp8_gemm_nt"))
    assert head.status == 0 and head.out == plain.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fp8_gemm",), "operator: 'fp8_gemm' is unknown, did you mean fp8_gemm_"),
        (("zzz",), "operator: 'zzz' is unknown; use one of fp8_gemm_nt"),
        (("m_grouped_fp8_gemm_nt_maskd",), "did you mean m_grouped_fp8_gemm_nt_masked or"),
        (("k_grouped_bf16_gemm_tn_contiguous",), "depends on how its groups share k, which commands are not told"),
        (
            ("fp8_gemm_nt_relu_bias",),
            "followed by _bias, _ACTIVATION or _bias_ACTIVATION, ACTIVATION being one of relu,",
        ),
        (("mxfp4_gemm_nt", "--arch", "sm90"), "there is no kernel for sm90; it runs on sm100 and sm120"),
        (("fp8_gemm_nt", "--arch", "sm75"), "--arch 'sm75' has no backend"),
        (("tf32_hc_prenorm_gemm",), "two comparisons, not by costs"),
        (("fp8_gemm_nt", "-m", "0"), "-m, -n: are 0 and 4096; D is empty, so a call launches nothing"),
        (
            ("fp8_gemm_nt", "-n", "0", "--arch", "sm100"),
            "-m, -n: are 4096 and 0; D is empty, so a call launches nothing",
        ),
    ],
)
def test_wrong_words_get_a_sentence(gemmgen: Command, words: tuple[str, ...], message: str) -> None:
    done = gemmgen("explain", *words)
    assert done.status == 1 and message in done.err and done.err.count("\n") == 1
