"""P06 and P10: whatever the tile rule picks is a shipped spec whose tile holds the output."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.ir import DType, KernelSpec
from gemmgen.ops import selection, spec_for
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.errors import UnsupportedArchitecture

SPECS = catalog.specs()
SM90_OPERATORS = [name for name in selection.SM90_OPERATORS if name in selection.UNFUSED]
ROWS = (1, 7, 64, 128, 129, 576, 4096)


def chosen(operator: str, n: int, k: int, sms: int = 132, **choices: object) -> set[KernelSpec]:
    return {spec_for(operator, m, n, k, sms, **choices) for m in ROWS}  # type: ignore[arg-type]


@cache
def offered(
    operator: str, d: DType, residual: bool, direct: bool, major: str = "m", columns: int = 128
) -> dict[str, KernelSpec]:
    """The kernels that an operator takes one of, by names of their own: written out, or with a further tile."""
    if operator == "fp8_gemm_nt":
        of_fp8 = (d, residual, major, columns, direct)
        specs = [catalog.fp8_gemm_nt(shape, *of_fp8) for shape in catalog.fp8_choices(*of_fp8)]
    else:
        layout = operator.removeprefix("bf16_gemm_")
        shapes = catalog.bf16_choices(layout, d, residual, direct)
        specs = [catalog.bf16_gemm(layout, shape, d, residual, direct) for shape in shapes]
    found = {spec.name: spec for spec in specs}
    assert len(found) == len(specs) and all(SPECS.get(name, spec) == spec for name, spec in found.items())
    return found


@pytest.mark.parametrize("operator", SM90_OPERATORS)
def test_every_choice_over_n_is_offered(operator: str) -> None:
    found: set[KernelSpec] = set()
    for n, k in itertools.product(range(8, 4097, 8), (128, 7168)):
        found |= chosen(operator, n, k)
    assert len(found) > 2
    for spec in found:
        assert offered(operator, DType.BF16, False, False)[spec.name] == spec
        assert spec.name in SPECS or operator[-2:] != "nt"


@pytest.mark.parametrize("operator", SM90_OPERATORS)
@pytest.mark.parametrize("d", catalog.OUTPUTS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("direct_store", [False, True])
def test_every_variant_of_a_choice_is_offered(operator: str, d: DType, residual: bool, direct_store: bool) -> None:
    variants: list[dict[str, Any]] = [{}]
    if operator == "fp8_gemm_nt":
        variants = [{"sfa_major": major, "sfb_columns": columns} for major in "mk" for columns in (1, 128)]
    for variant in variants:
        for n in (8, 24, 576, 2112, 7168):
            for spec in chosen(operator, n, 1152, d=d, residual=residual, direct_store=direct_store, **variant):
                of_fp8 = (variant.get("sfa_major", "m"), variant.get("sfb_columns", 128))
                assert offered(operator, d, residual, direct_store, *of_fp8)[spec.name] == spec


def test_stores_never_stage_wider_rows_than_the_tile() -> None:
    """P06: N of 8, 16, 24 and 40."""
    for operator, n, d in itertools.product(SM90_OPERATORS, (8, 16, 24, 40, 576, 2112), catalog.OUTPUTS):
        for spec in chosen(operator, n, 7168, d=d):
            plan = lower(spec)
            if plan.store.through is None:
                assert spec.math.body.swap_ab
                assert spec.tile.m < 64 or spec.schedule.kind in ("split_k", "cluster_split_k")
                continue
            assert 16 <= plan.store.row_bytes <= plan.mma.width * d.bytes
            assert plan.mma.width * d.bytes % plan.store.row_bytes == 0


def test_k_is_a_value_of_the_launch() -> None:
    """P08: an odd number of K blocks is no other kernel, so a legal shape cannot fail to compile."""
    names = {spec_for("fp8_gemm_nt", 64, 7168, 128 * blocks, 132).name for blocks in range(1, 34)}
    assert names <= set(SPECS)
    for name in names:
        text = kernel_of(SPECS[name]).text.source
        assert "ceil_div(p.k, TILE_K)" in text and "1152" not in text


def test_the_rule_counts_multiprocessors() -> None:
    names = {spec_for("fp8_gemm_nt", 4096, 2112, 7168, sms).name for sms in (2, 66, 132)}
    assert len(names) > 1


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
def test_an_empty_problem_has_a_kernel_too(arch: str) -> None:
    for extents in ((0, 64, 128), (64, 0, 128), (0, 0, 0)):
        assert spec_for("fp8_gemm_nt", *extents, 132, arch=arch).arch == arch


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="operator: 'fp8_gemm' is unknown; use one of fp8_gemm_nt"):
        spec_for("fp8_gemm", 1, 8, 128, 132)
    with pytest.raises(UnsupportedArchitecture, match="bf16_gemm_nt: there is no kernel for sm75; it runs on sm90 and"):
        spec_for("bf16_gemm_nt", 1, 8, 128, 132, arch="sm75")


@pytest.mark.parametrize("operator", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_what_is_launched_early_is_the_same_kernel_and_may_read_weights_ahead(operator: str) -> None:
    for m, n, k in ((1, 2112, 7168), (64, 576, 7168), (128, 576, 7168), (128, 24576, 1536), (4096, 7168, 2048)):
        plain = spec_for(operator, m, n, k, 132)
        early = spec_for(operator, m, n, k, 132, programmatic_launch=True)
        assert early.programmatic_launch and not plain.programmatic_launch and early.name == f"{plain.name}_pdl"
        split = plain.schedule.kind == "cluster_split_k"
        assert split == (n in (576, 2112))
        assert early.ahead == ((("b", "sfb") if operator == "fp8_gemm_nt" else ("b",)) if split else ())


def test_only_hopper_launches_early() -> None:
    with pytest.raises(UnsupportedArchitecture, match="programmatic_launch: fp8_gemm_nt starts early on sm90 alone"):
        spec_for("fp8_gemm_nt", 64, 4096, 7168, 132, arch="sm100", programmatic_launch=True)


@pytest.mark.parametrize("m", [1, 16])
def test_a_few_rows_take_a_tile_that_copies_no_more(m: int) -> None:
    spec = spec_for("fp8_gemm_nt", m, 576, 7168, 132)
    assert spec.tile.m == 16 and spec.schedule.kind == "cluster_split_k"


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_behind_chains_that_run_alone_tiles_cost_what_they_do_behind_none(activation: str) -> None:
    """On an H200 128x256 takes 2 to 5 % less there than 128x192, which is cheaper by what chains leave of them."""
    for m in (1024, 4096):
        candidates = selection.select(f"fp8_gemm_nt_bias_{activation}", m, 24576, 1536, 132, selection.Choices())
        assert candidates.picked.product == "sm90_fp8_gemm_nt_bf16_128x256"
        plain = selection.select("fp8_gemm_nt", m, 24576, 1536, 132, selection.Choices())
        costs = {each.product: each.cost.key for each in plain.candidates}
        for each in candidates.candidates:
            assert each.cost.key == costs[each.product], each.product


@pytest.mark.parametrize("choice", [{"d": DType.F32}, {"residual": True}, {"epilogue": catalog.mxfp8_output(False)}])
def test_a_name_that_says_what_is_behind_the_product_is_all_that_says_so(choice: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="fp8_gemm_nt_bias_relu says what is behind the product"):
        spec_for("fp8_gemm_nt_bias_relu", 256, 512, 1024, 132, **choice)  # type: ignore[arg-type]
    assert spec_for("fp8_gemm_nt_bias_relu", 256, 512, 1024, 132).output.dtype == DType.BF16
