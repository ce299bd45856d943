"""What ships: names are unique, say what the spec is, and cover every choice an op can make."""

from __future__ import annotations

import itertools
import re

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.catalog.dense import STAGED_ROWS
from gemmgen.ir import Arch

SPECS = catalog.specs()
NAME = re.compile(r"sm90_(fp8_gemm_nt|bf16_gemm_(?:nn|nt|tn|tt))(_1d1d)?(_ksf)?_(bf16|f32)(_c)?(_direct)?_(\d+)x(\d+)")


def test_every_name_says_what_its_spec_is() -> None:
    listed = {name: spec for name, spec in SPECS.items() if name not in catalog.fused_specs() and not spec.prologue}
    hopper = {name: spec for name, spec in listed.items() if spec.arch == Arch.SM90}
    for name, spec in hopper.items():
        match = NAME.match(name)
        assert match is not None and spec.name == name, name
        op, columns, plain, d, residual, direct, m, n = match.groups()
        assert (spec.tile.m, spec.tile.n) == (int(m), int(n))
        assert spec.output.dtype == d
        assert any(step.kind == "residual" for step in spec.epilogue) == bool(residual)
        swapped = spec.math.body.swap_ab  # type: ignore[union-attr]
        assert ("_swap" in name) == swapped
        assert name.endswith("_share") == (spec.schedule.kind == "split_k")
        unstaged = spec.schedule.kind in ("split_k", "cluster_split_k") or spec.tile.m < STAGED_ROWS
        by_lanes = bool(direct) or (swapped and unstaged)
        assert (spec.epilogue[-1].through is None) == by_lanes  # type: ignore[union-attr]
        if op == "fp8_gemm_nt":
            assert spec.operand("sfb").box[0] == ("n" if columns else "n/128")
            assert spec.operand("sfa").inner == ("k/128" if plain else "m")


@pytest.mark.parametrize("layout", catalog.BF16_LAYOUTS)
def test_bf16_layouts_differ_by_majorness(layout: str) -> None:
    spec = catalog.bf16_gemm(layout, catalog.Shape(128, 128))
    assert spec.operand("a").inner == ("k" if layout[0] == "n" else "m")
    assert spec.operand("b").inner == ("n" if layout[1] == "n" else "k")


def test_every_fp8_choice_has_tiles_that_ship() -> None:
    choices = itertools.product(catalog.OUTPUTS, (False, True), "mk", (128, 1), (False, True))
    for d, residual, sfa_major, columns, direct in choices:
        shapes = catalog.fp8_shapes(d, residual, sfa_major, columns, direct)
        assert shapes
        for shape in shapes:
            spec = catalog.fp8_gemm_nt(shape, d, residual, sfa_major, columns, direct)
            assert SPECS[spec.name] == spec


def test_every_bf16_choice_has_tiles_that_ship() -> None:
    choices = itertools.product(catalog.BF16_LAYOUTS, catalog.OUTPUTS, (False, True), (False, True))
    for layout, d, residual, direct in choices:
        shapes = catalog.bf16_shapes(layout, d, residual, direct)
        assert shapes
        for shape in shapes:
            spec = catalog.bf16_gemm(layout, shape, d, residual, direct)
            assert SPECS[spec.name] == spec


def test_the_shipped_tiles_reach_what_the_issue_of_small_and_large_problems_asks() -> None:
    tiles = {(spec.tile.m, spec.tile.n) for spec in SPECS.values()}
    assert {64, 128, 256} <= {m for m, _ in tiles}
    assert {16, 32, 64, 128, 256} <= {n for _, n in tiles}
    assert {spec.cluster.size for spec in SPECS.values()} == {1, 2}
    assert {(spec.cluster.m, spec.cluster.n) for spec in SPECS.values()} == {(1, 1), (2, 1), (1, 2)}


def test_every_legal_width_lowers() -> None:
    for width in range(8, 257, 8):
        spec = catalog.bf16_gemm("nt", catalog.Shape(64, width, groups=1))
        assert lower(spec).mma.instruction == f"wgmma_m64n{width}k16_f32_bf16_bf16"


def test_promotion_takes_every_width_that_leaves_room_for_two_sums() -> None:
    for width in range(8, 257, 8):
        spec = catalog.fp8_gemm_nt(catalog.Shape(64, width, groups=1))
        if width <= 208:
            assert lower(spec).mma.instruction == f"wgmma_m64n{width}k32_f32_e4m3_e4m3"
        else:
            with pytest.raises(ValueError, match=f"needs {width} accumulator registers a thread"):
                lower(spec)


def test_building_the_catalog_twice_gives_equal_specs() -> None:
    catalog.specs.cache_clear()
    assert catalog.specs() == SPECS
    assert list(catalog.specs()) == list(SPECS)
