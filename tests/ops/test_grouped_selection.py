"""Which kernel a call of row groups takes: the dense rule for a group's expected rows, and tiles of one group each."""

from __future__ import annotations

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.ir import DType, RowGroups
from gemmgen.ops import spec_for
from gemmgen.ops.groups import Groups, contiguous, masked, problem_of
from gemmgen.ops.selection import Choices, select
from gemmgen.runtime.architectures import SMS

N, K = 6144, 7168
COUNTS = Groups("counts")


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize("product", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_groups_of_more_rows_have_larger_tiles(arch: str, product: str) -> None:
    specs = [spec_for(product, rows, N, K, SMS[arch], arch=arch, groups=COUNTS, group_count=16) for rows in (8, 4096)]
    few, many = (spec.tile.m * spec.cluster.m for spec in specs)
    assert few <= 64 < many
    assert all(spec.groups == RowGroups(by="counts", layout="layout") for spec in specs)


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize("alignment", [16, 48, 64, 128, 192])
@pytest.mark.parametrize("rows", [1, 64, 8192])
def test_by_ids_a_tile_is_of_one_group(arch: str, alignment: int, rows: int) -> None:
    for product in ("fp8_gemm_nt", "bf16_gemm_nt"):
        groups = Groups("ids", alignment)
        spec = spec_for(product, rows, N, K, SMS[arch], arch=arch, groups=groups, group_count=4)
        assert isinstance(spec.groups, RowGroups)
        assert spec.groups.alignment == alignment or alignment % (spec.tile.m * spec.cluster.m) == 0


def test_tiles_begin_where_groups_do_while_a_launch_may_look_for_them() -> None:
    """On Hopper, in 1024 times the alignment at most; else tiles divide it, whatever a hint says of rows."""
    sizes, groups = {"m": 131072, "n": 6144, "k": 7168, "g": 32}, Groups("ids", 128)
    for problem, searched in ((sizes, True), ({**sizes, "m": 131200}, False), ({**sizes, "g": 2**19}, False)):
        spec = spec_for("fp8_gemm_nt", sms=132, **problem_of(groups, problem))
        assert isinstance(spec.groups, RowGroups) and spec.groups.found == searched, problem
    spec = spec_for("fp8_gemm_nt", 4096, N, K, 132, groups=groups, group_count=33)
    assert 128 % spec.tile.m == 0  # as many rows as are expected would be too many, and nobody says otherwise
    spec = spec_for("fp8_gemm_nt", sms=132, **problem_of(groups, {**sizes, "g": 33}))
    assert spec.tile.m == 192
    spec = spec_for("bf16_gemm_nt", 1024, N, K, 132, groups=Groups("ids", 64), group_count=4)
    assert spec.tile.m == 128 and spec.groups == RowGroups(by="ids", layout="layout", alignment=64)
    with pytest.raises(ValueError, match="as a tile is of one group, or begin where a launch finds groups"):
        spec_for("bf16_gemm_nt", 64, N, K, 132, groups=Groups("ids", 4112), direct_store=True)
    for rows in (0, 64, 1024):  # a hint refuses nothing
        direct = problem_of(Groups("ids", 16, rows=rows), {"m": 1024, "n": 71, "k": 128, "g": 20})
        assert spec_for("bf16_gemm_nt", sms=132, direct_store=True, **direct).tile.m == 64
    hinted = spec_for("fp8_gemm_nt", sms=132, **problem_of(Groups("ids", 16, rows=64), {**sizes, "m": 20000}))
    assert 16 % hinted.tile.m == 0


def test_groups_of_few_rows_have_n_on_the_rows_of_products() -> None:
    for rows, tile, swapped in ((1, 16, True), (12, 16, True), (20, 32, True), (50, 64, False)):
        spec = spec_for("fp8_gemm_nt", rows, N, K, SMS["sm90"], groups=COUNTS, group_count=16)
        assert (spec.math.body.swap_ab, spec.tile.m) == (swapped, tile), spec.name


def test_groups_that_fill_a_pair_share_what_they_read_of_b() -> None:
    """Rows for one unit of two CTAs, more or fewer; of several units the last is often half empty."""
    pairs = [
        spec_for("fp8_gemm_nt", rows, 6144, 7168, SMS["sm90"], groups=COUNTS, group_count=32).cluster.m == 2
        for rows in (20, 197, 1024)
    ]
    assert pairs == [False, True, False]
    for rows, product in ((1024, "fp8_gemm_nt"), (8, "bf16_gemm_tn"), (8, "fp8_gemm_nt_mxfp8out")):
        spec = spec_for(product, rows, N, K, SMS["sm90"], groups=COUNTS, group_count=16)
        assert not spec.math.body.swap_ab, spec.name


def test_hints_have_no_rows_that_pad_groups() -> None:
    """Half an alignment of what a matrix has is padding, at least half of it is not; by ends, too."""
    sizes = {"m": 32 * 128, "n": 4096, "k": 7168, "g": 32}
    counted = [spec_for("fp8_gemm_nt", rows, 4096, 7168, 132, groups=COUNTS, group_count=32) for rows in (32, 64)]
    for by in ("ids", "ends"):
        few, more = (
            spec_for("fp8_gemm_nt", sms=132, **problem_of(Groups(by, 128, rows=rows), sizes)) for rows in (32, 64)
        )
        assert (few.tile.m, few.math.body.swap_ab) == (counted[0].tile.m, counted[0].math.body.swap_ab)
        assert more.tile.m >= 64 and not more.math.body.swap_ab
        given = problem_of(Groups(by, 128), sizes)
        assert given["padding"] and not problem_of(Groups(by, 128, rows=64), sizes)["padding"]
        assert problem_of(Groups(by, 128, rows=5000), sizes)["padding"]  # more than there are: extents decide
    for alignment, rows in ((1024, 512), (512, 256), (4080, 2000)):
        short = problem_of(Groups("ids", alignment), {"m": rows, "n": 4096, "k": 7168, "g": 1})
        assert spec_for("fp8_gemm_nt", sms=132, **short).tile.m >= 64, alignment


def test_few_rows_that_differ_have_narrower_tiles_in_few_groups() -> None:
    """So that no SM reads many more weights than another; with many groups wider ones are as even."""
    few, many = (spec_for("fp8_gemm_nt", 20, 4096, 4096, 132, groups=COUNTS, group_count=count) for count in (6, 64))
    assert few.tile.n < many.tile.n


def test_the_alignment_and_zeros_are_part_of_a_kernel_by_ends() -> None:
    spec = spec_for("bf16_gemm_nt", 100, N, K, 132, groups=Groups("ends", 128, True), group_count=4)
    assert spec.groups == RowGroups(by="ends", layout="layout", alignment=128, zero_padding=True)
    assert spec.name.endswith("_by_ends_a128_zero")


def test_what_tile_rules_expect() -> None:
    sizes = {"m": 1000, "n": N, "k": K, "g": 8}
    assert Groups("counts").expected(sizes) == (1000, 8)
    assert Groups("counts", rows=48).expected(sizes) == (48, 8)
    assert Groups("counts", rows=4096).expected(sizes) == (1000, 8)
    assert Groups("ends").expected(sizes) == (125, 8)
    assert Groups("ids", 128).expected(sizes) == (143, 7)  # no more groups than alignments have rows
    assert Groups("ids", 128).expected({**sizes, "m": 5, "g": 0}) == (5, 1)


def test_hints_count_in_steps() -> None:
    """Of few rows up, a tile more reads B again; 1.24 times 202 rows are one pair of tiles, of 208 they are not."""
    hints = {None: 0, -3: 0, 0: 0, 1: 4, 16: 16, 61: 64, 202: 200, 250: 248, 257: 256, 1025: 1024, 10**6: 4096}
    assert {hint: masked(hint).rows for hint in hints} == hints
    assert {hint: contiguous(False, True, True, hint).rows for hint in hints} == hints


def test_operators_by_name() -> None:
    spec = spec_for("m_grouped_fp8_gemm_nt_masked", 20, N, K, 132)
    assert spec.groups is not None and spec.groups.by == "counts"
    spec = spec_for("m_grouped_fp8_gemm_nt_contiguous_mxfp8out", 500, N, K, 148, arch="sm100")
    assert spec.groups is not None and spec.groups.by == "ids" and "mxfp8out" in spec.name
    spec = spec_for("m_grouped_fp8_fp4_gemm_nn_contiguous", 20, N, K, 188, arch="sm120", groups=Groups("ends"))
    assert spec.groups == RowGroups(by="ends", layout="layout")
    with pytest.raises(ValueError, match="operator: 'm_grouped_fp8_gemm_tn_contiguous' is unknown"):
        spec_for("m_grouped_fp8_gemm_tn_contiguous", 20, N, K, 132)


def test_tiles_of_three_warpgroups_serve_groups_that_start_anywhere() -> None:
    """Where they are the fastest on an H200; by ids a launch finds where groups start."""
    for by, rows, count, n, k in (("counts", 141, 32, 7168, 3072), ("ends", 4832, 8, 6144, 7168)):
        spec = spec_for("fp8_gemm_nt", rows, n, k, 132, groups=Groups(by), group_count=count)
        assert (spec.tile.m, spec.tile.n, spec.math.warps) == (192, 128, 12), spec.name
    spec = spec_for("fp8_gemm_nt", 4288, 6144, 7168, 132, groups=Groups("ids", 128), group_count=8)
    assert spec.tile.m == 192 and spec.groups == RowGroups(by="ids", layout="layout", alignment=128)


@pytest.mark.parametrize("by", ["ids", "ends", "counts"])
@pytest.mark.parametrize("alignment", [16, 64, 128, 272])
def test_every_candidate_of_groups_can_be_lowered(by: str, alignment: int) -> None:
    """Also with a scale of B for each column, whatever is stored, and where an epilogue leaves few tiles."""
    groups, quantised = Groups(by, alignment if by != "counts" else 1), catalog.mxfp8_output(False)
    for form in ({}, {"d": DType.F32}, {"d": DType.F32, "residual": True}, {"sfb_columns": 1}, {"sfa_major": "k"}):
        choices = Choices(groups=groups, group_count=4, **form)
        for each in select("fp8_gemm_nt", 700, 512, 512, 132, choices).candidates:
            lower(each.spec)
    if alignment < 272:
        for each in select("fp8_gemm_nt", 700, 512, 512, 132, Choices(groups=groups, epilogue=quantised)).candidates:
            lower(each.spec)


def test_scales_of_columns_have_large_tiles_too() -> None:
    for by in ("ids", "ends", "counts"):
        choices = {"groups": Groups(by, 128 if by == "ids" else 1), "group_count": 4, "sfb_columns": 1}
        spec = spec_for("fp8_gemm_nt", 4096, 4096, 4096, 132, **choices)
        assert spec.tile.n >= 192 and spec.math.warps == 8, spec.name
