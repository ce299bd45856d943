"""A slice of the campaign, what it chooses and refuses, that it finds wrong outputs, and the pages it wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from campaign.layouts import run_layout
from campaign.page import Row, from_json, page, refusals, to_json
from campaign.problems import ALL, MATRICES, Choice, K, M, N, admission, covering, pairs, values
from campaign.runs import Case, Found, digest, run

from gemmgen import catalog
from gemmgen.ir import Arch, DType
from gemmgen.runtime.simulation import SCHEDULES

DOCS = Path(__file__).parents[2] / "docs"
SLICE = {Arch.SM90: 200, Arch.SM100: 25, Arch.SM120: 150}
"""Every how many kernels of the catalog are run beside other tests."""
SPECS = {name: spec for name, spec in catalog.specs().items() if not spec.prologue}
CHOSEN = [
    name for arch, step in SLICE.items() for name in [n for n, spec in SPECS.items() if spec.arch == arch][::step]
]
BF16, MIXED, NVFP4 = (
    next(name for name in SPECS if name.startswith(f"sm100_{stem}"))
    for stem in ("bf16_gemm_nt_bf16_16x128", "fp8_fp4_gemm_nt_e4m3x128_e2m1x32", "nvfp4_gemm_nt_bf16_16x128")
)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_kernel_is_exact_on_ragged_problems(name: str) -> None:
    number = CHOSEN.index(name)
    problems = values(admission(SPECS[name]).taken)
    found = run(SPECS[name], problems, SCHEDULES[number % len(SCHEDULES) :][:1])
    assert not found.faults and (found.exact, found.wide) == (len(problems), len(problems)), found.faults
    assert 0 < found.worst_tile < 4e-3 + 2e-3 * name.startswith("sm90_fp8")


def test_a_layout_kernel_is_exact_on_ragged_matrices() -> None:
    spec = catalog.pack_ue8m0(Arch.SM100, 128)
    found = run_layout(spec, admission(spec).taken[::13], SCHEDULES[2:3])
    assert (found.exact, found.faults) == (4, [])
    pairs_of_4_bits = admission(catalog.to_k_major(Arch.SM100, DType.E2M1))
    assert set(pairs_of_4_bits.refused) == {sizes for sizes in MATRICES if sizes[0] % 2}


# ------------------------------------------------------------------------------------------------ what is run


def test_every_pair_of_sizes_occurs_and_the_largest_problem() -> None:
    chosen = covering(ALL)
    wanted = {pair for sizes in ALL for pair in pairs(sizes)}
    assert {pair for sizes in chosen for pair in pairs(sizes)} == wanted and len(wanted) == 25 + 20 + 20
    assert chosen == covering(ALL) and len(chosen) < 30 and (max(M), max(N), max(K)) in chosen
    assert [set(axis) for axis in zip(*values(ALL), strict=True)] == [set(M), set(N), set(K)]
    assert len(values(ALL)) == 5


def test_few_problems_a_kernel_are_every_pair_of_many_kernels() -> None:
    few, pairwise = Choice(few=2), covering(ALL)
    assert {each for place in range(len(pairwise)) for each in few.problems(ALL, place)} == set(pairwise)
    assert few.problems(ALL, 0) + few.problems(ALL, 1) == pairwise[:4] and Choice(99).problems(ALL, 3) == pairwise
    assert Choice().problems(ALL, 7) == pairwise and Choice(every=True).problems(ALL, 7) == list(ALL)
    found = run(SPECS[BF16], [(1, 16, 32)], SCHEDULES[:1], first=2)
    assert (found.exact, found.wide, found.faults) == (1, 1, [])


def test_only_4_bit_factors_beside_8_bit_ones_refuse_sizes() -> None:
    for name in (*CHOSEN[:2], NVFP4):
        admitted = admission(SPECS[name])
        assert (set(admitted.taken) == set(ALL)) == (not admitted.refused) == ("fp8_fp4" not in name), name
    refused = admission(SPECS[MIXED])
    assert {k for _, _, k in refused.taken} == {128, 256, 512} and set(refused.refused) == {
        sizes for sizes in ALL if sizes[2] != 512
    }
    first, second, third = refusals(refused.refused)
    assert first.startswith("k=32 (25 problems): b: k is 32; beside an 8-bit factor, TMA reads 4-bit numbers 128 at a")
    assert second.startswith("k=96 (25 problems)") and third.startswith("k=160 (25 problems)")


def test_inputs_reach_every_code_both_extremes_and_nan_beyond_k() -> None:
    for name in (NVFP4, MIXED):
        found = Found(name)
        for number, sizes in enumerate(values(admission(SPECS[name]).taken)):
            Case(SPECS[name], sizes, number, exact=False).note_codes(found)
        assert not found.short_of(SPECS[name])
    assert found.short_of(SPECS[NVFP4]), "of another kernel, whose scales reach other bytes"
    case = Case(SPECS[NVFP4], (17, 24, 96), 0, exact=True)
    words = case.tensors["sfa"].long()
    assert words.shape == (17, 2) and ((words[:, 1] >> 16 & 0xFFFF) == 0x7F7F).all(), "6 scales, and NaN in two bytes"


# ------------------------------------------------------------------------------------------------ what is found


@pytest.mark.parametrize("exact", [True, False])
def test_wrong_elements_and_writes_outside_are_found(exact: bool) -> None:
    case = Case(SPECS[BF16], (17, 24, 96), 0, exact)
    right = case._poisoned()
    right.copy_(case.float64)
    assert case._fault(right) is None
    for row, column, value in ((16, 23, float("nan")), (0, 0, 1.02 * right[0, 0].item() + 1)):
        wrong = case._poisoned().copy_(right)
        wrong[row, column] = value
        assert case._fault(wrong) is not None
    beside = case._poisoned().copy_(right)
    beside.as_strided((18, 24), beside.stride())[17, 3] = 0.0
    assert case._fault(beside) == "1 elements outside the output are written"


def test_a_fault_of_the_simulator_is_a_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    case, found = Case(SPECS[BF16], (1, 16, 32), 0, exact=True), Found(BF16)
    case.tensors["a"] = case.tensors["a"].T
    case.run("early", found)
    assert len(found.faults) == 1 and found.faults[0].startswith("1x16x32 exact early: ValueError: ")
    case = Case(SPECS[BF16], (1, 16, 32), 0, exact=True)
    monkeypatch.setattr(case, "_fault", lambda d: "off")
    case.run("early", found)
    assert found.faults[1:] == ["1x16x32 exact early: off"] and found.exact == 0


def test_the_digest_is_of_instructions() -> None:
    assert digest(SPECS[BF16]) == digest(SPECS[BF16]) != digest(SPECS[NVFP4])


# ------------------------------------------------------------------------------------------------ what is kept


def test_rows_survive_the_file() -> None:
    row = Row("k", "00", 25, 100, 100, 25, 1.5e-3, "1x16x32", ("k=32 (25 problems): no",), ("wrong",))
    assert from_json(to_json([row])) == {"k": row}
    text = page("sm100", [row], SCHEDULES)
    assert "| `k` | 25 of 100 | 1 | 100 | 25 | 1.5e-03 | 1x16x32 |" in text
    assert "1. k=32 (25 problems): no" in text and "**k**: wrong" in text
    assert "| `k` | 25 of 100 | 1 | 100 | 0 | - | - |" in page("sm100", [replace(row, wide=0)], SCHEDULES)


@pytest.mark.parametrize("arch", [path.stem.removeprefix("campaign_") for path in sorted(DOCS.glob("campaign_*.json"))])
def test_a_page_shows_its_rows_and_none_is_wrong(arch: str) -> None:
    file = DOCS / f"campaign_{arch}.json"
    rows = from_json(file.read_text())
    assert file.with_suffix(".md").read_text() == page(arch, list(rows.values()), SCHEDULES)
    assert rows and not any(each.faults for each in rows.values())
    for each in rows.values():
        assert each.exact == len(SCHEDULES) * each.problems and each.wide in (0, each.problems), each.kernel
        assert (each.wide == 0) == (each.kernel in catalog.layouts()), each.kernel
