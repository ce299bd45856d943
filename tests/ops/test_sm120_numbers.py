"""Operators of workstation Blackwell on the simulator, bit for bit; tests name what others had to fix there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from problems import bf16_problem, whole_numbers
from sm100_problems import Factor, fp4, fp8, nvfp4, product

import gemmgen
from gemmgen import catalog, ops
from gemmgen.catalog import WarpShape
from gemmgen.ir import Arch
from gemmgen.ops import relayout

MANY_SMS = 8
"""So many that the sums of small outputs are shared out, and too few for many narrow tiles."""


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm120", sms=2):
        yield


def same(d: torch.Tensor, expected: torch.Tensor) -> None:
    assert d.dtype == expected.dtype and torch.equal(d, expected)


def kernel(operator: str, m: int, n: int, k: int, sms: int = 2, **choices: object) -> str:
    return ops.spec_for(operator, m, n, k, sms, arch="sm120", **choices).name  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ every operator


@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 32), (17, 24, 160), (130, 72, 288)])
def test_fp8_shapes(m: int, n: int, k: int) -> None:
    a, b = fp8(m, k, seed=1), fp8(n, k, (128, 128), seed=2)
    same(ops.fp8_gemm_nt(a.fp32, b.fp32), product(a, b))


def test_every_form_of_scales_gives_the_same_bits() -> None:
    a, b = fp8(9, 160, (1, 32), seed=1), fp8(24, 160, (1, 32), seed=2)
    expected = product(a, b)
    blocked = [
        (each.data, ops.Blocked128x4(ops.to_blocked_128x4(each.codes.view(torch.float8_e8m0fnu)))) for each in (a, b)
    ]
    row_major = [(each.data, each.words[1].contiguous()) for each in (a, b)]
    turned = [(each.data, each.fp32[1].T.contiguous().T) for each in (a, b)]
    for form_a, form_b in ((a.words, b.fp32), (a.e8m0, row_major[1]), (turned[0], blocked[1]), (blocked[0], b.words)):
        same(ops.fp8_gemm_nt(form_a, form_b, recipe=(1, 1, 32)), expected)


def test_scales_of_128_rows_are_spread() -> None:
    a, b = fp8(5, 160, (128, 128), seed=1), fp8(136, 160, (128, 128), seed=2)
    for form in ("fp32", "words", "e8m0"):
        pairs = getattr(a, form), getattr(b, form)
        same(ops.fp8_gemm_nt(*pairs, recipe_a=(128, 128), recipe_b=(128, 128)), product(a, b))


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_fp8_that_lies_along_rows_is_turned_first(layout: str) -> None:
    """The tensor core takes 8-bit factors along k only; the layout kernel needs no aligned pitch."""
    a, b = fp8(17, 160, (1, 32), seed=1), fp8(40, 160, (1, 32), seed=2)
    given_a = tuple(each.T.contiguous() for each in a.fp32) if layout[0] == "t" else a.fp32
    given_b = tuple(each.T.contiguous() for each in b.fp32) if layout[1] == "n" else b.fp32
    same(getattr(ops, f"fp8_gemm_{layout}")(given_a, given_b, recipe=(1, 1, 32)), product(a, b))


@pytest.mark.parametrize(("m", "n", "k"), [(17, 40, 1), (1, 40, 48), (1, 1, 1)])
def test_fp8_along_rows_of_which_one_extent_is_1(m: int, n: int, k: int) -> None:
    """A stride over one element may be anything; none of these has aligned rows along k."""
    a, b = fp8(m, k, (1, 32), seed=1), fp8(n, k, (1, 32), seed=2)
    pairs = []
    for each in (a, b):
        rows = each.data.shape[0]
        room = torch.zeros(k, 2 * rows + 1, dtype=torch.float8_e4m3fn)[:, :rows].T
        pairs.append((room.copy_(each.data), each.fp32[1]))
        if rows == 1:
            pairs[-1] = pairs[-1][0].as_strided((1, k), (5, 3)), pairs[-1][1]
    same(ops.fp8_gemm_nt(*pairs, recipe=(1, 1, 32)), product(a, b))


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_bf16_layouts(layout: str) -> None:
    a, b = bf16_problem(16, 40, 104)
    given = (a.T.contiguous() if layout[0] == "t" else a, b.T.contiguous() if layout[1] == "n" else b)
    c = whole_numbers(16, 40, torch.float32)
    same(getattr(ops, f"bf16_gemm_{layout}")(*given, c=c), (a.double() @ b.double().T + c).float())


@pytest.mark.parametrize(("block_a", "block_b"), [(128, 32), (32, 32)])
def test_fp8_by_fp4_and_back(block_a: int, block_b: int) -> None:
    a, b = fp8(17, 256, (1, block_a), seed=1), fp4(40, 256, (1, block_b), seed=2)
    recipe = {"recipe_a": (1, block_a), "recipe_b": (1, block_b)}
    same(ops.fp8_fp4_gemm_nt(a.words, b.words, **recipe), product(a, b))
    turned = {"recipe_a": (1, block_b), "recipe_b": (1, block_a)}
    same(ops.fp8_fp4_gemm_nt(b.fp32, a.fp32, **turned, out_dtype=torch.float32), product(b, a, torch.float32))


@pytest.mark.parametrize(("block_a", "block_b"), [(32, 32), (128, 128), (128, 32)])
def test_fp4_by_fp4_at_any_granularity(block_a: int, block_b: int) -> None:
    a, b = fp4(17, 320, (1, block_a), seed=1), fp4(24, 320, (1, block_b), seed=2)
    same(ops.fp8_fp4_gemm_nt(a.fp32, b.words, recipe_a=(1, block_a), recipe_b=(1, block_b)), product(a, b))


def test_mxfp4_and_nvfp4() -> None:
    a, b = fp4(17, 96, seed=1), fp4(24, 96, seed=2)
    same(ops.mxfp4_gemm_nt(a.words, b.e8m0), product(a, b))
    x, y = nvfp4(17, 96, seed=1), nvfp4(40, 96, seed=2)
    sf = y.codes.view(torch.float8_e4m3fn)
    blocked = ops.Blocked128x4(ops.to_blocked_128x4(sf))
    exact = product(x, y, torch.float32)
    c = whole_numbers(17, 40, torch.float32)
    same(ops.nvfp4_gemm_nt(x.words, (y.data, sf), out_dtype=torch.float32), exact)
    same(ops.nvfp4_gemm_nt((*x.words, 0.25), (y.data, blocked, 4.0), alpha=0.5, c=c), exact * 0.5 + c)


def test_k_of_zero_gives_c_or_zeros_and_empty_outputs_launch_nothing() -> None:
    c = whole_numbers(5, 16, torch.bfloat16)
    for call, a, b in (
        (ops.fp8_gemm_nt, fp8(5, 0).fp32, fp8(16, 0).fp32),
        (ops.mxfp4_gemm_nt, fp4(5, 0).e8m0, fp4(16, 0).e8m0),
        (ops.bf16_gemm_nt, *bf16_problem(5, 16, 0)),
    ):
        assert not call(a, b, torch.full((5, 16), torch.nan, dtype=torch.bfloat16)).any()
        same(call(a, b, c=c), c)
    assert ops.fp8_gemm_nt(fp8(0, 128).fp32, fp8(16, 128).fp32).shape == (0, 16)


# ------------------------------------------------------------------------------------------------ what others fixed


@pytest.mark.parametrize(("block_a", "block_b"), [(32, 128), (128, 32)])
def test_trap_5_rows_of_scales_are_counted_for_each_factor_by_itself(block_a: int, block_b: int) -> None:
    """672 of k: 6 or 21 blocks, so words and their tails differ; they hold NaN beyond k."""
    a, b = fp8(17, 672, (1, block_a), seed=1), fp8(40, 672, (1, block_b), seed=2)
    d = ops.fp8_gemm_nt(a.words, b.words, recipe_a=(1, block_a), recipe_b=(1, block_b), out_dtype=torch.float32)
    same(d, product(a, b, torch.float32))


@pytest.mark.parametrize("side", ["a", "b"])
def test_trap_6_scales_are_kept_over_k_blocks_only_where_they_are_coarse(side: str) -> None:
    """One factor's scale holds for a whole K block, the other's changes inside it."""
    blocks = (128, 32) if side == "a" else (32, 128)
    a, b = fp8(16, 512, (1, blocks[0]), seed=3), fp4(24, 512, (1, blocks[1]), seed=4)
    same(ops.fp8_fp4_gemm_nt(a.fp32, b.fp32, recipe_a=(1, blocks[0]), recipe_b=(1, blocks[1])), product(a, b))


def test_trap_27_any_number_of_scales_is_packed_in_48_kb_of_shared_memory() -> None:
    """65,536 of k at 32 a scale are 2048 scales a row."""
    exponents = torch.randint(1, 255, (5, 2048), dtype=torch.int32)
    found = relayout.pack_ue8m0((exponents << 23).view(torch.float32), 5, 1, Arch.SM120)
    assert torch.equal(found.contiguous().view(torch.uint8).view(5, 2048), exponents.to(torch.uint8))


def test_trap_28_no_kernel_asks_for_more_registers_than_an_sm_has() -> None:
    from gemmgen.backends import lower

    for spec in catalog.specs().values():
        if spec.arch == Arch.SM120:
            plan = lower(spec)
            asked = sum(role.warps * 32 * (role.registers or 0) for role in plan.roles) * plan.ctas_per_sm
            assert asked <= 65536 and plan.shared_bytes <= 101376, spec.name


def test_trap_35_fp32_scales_that_shall_stay_fp32_are_refused() -> None:
    a, b = fp8(16, 128, seed=1), fp8(24, 128, seed=2)
    with pytest.raises(ValueError, match=r"^disable_ue8m0_cast: is True and sfa is torch.float32"):
        ops.fp8_gemm_nt(a.fp32, b.fp32, disable_ue8m0_cast=True)
    same(ops.fp8_gemm_nt(a.words, b.words, disable_ue8m0_cast=True), product(a, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_trap_37_c_is_added_once_also_in_place_and_with_swapped_factors(dtype: torch.dtype) -> None:
    a, b = fp8(5, 288, seed=1), fp8(136, 288, (128, 128), seed=2)
    assert "swap" in kernel("fp8_gemm_nt", 5, 136, 288, residual=True)
    c = whole_numbers(5, 136, dtype)
    expected = (product(a, b, torch.float32) + c.float()).to(dtype)
    same(ops.fp8_gemm_nt(a.fp32, b.fp32, c=c), expected)
    same(ops.fp8_gemm_nt(a.fp32, b.fp32, c, c), expected)


@pytest.mark.parametrize(("block_a", "block_b"), [(32, 128), (128, 32)])
def test_trap_38_swapped_factors_keep_their_own_granularity(block_a: int, block_b: int) -> None:
    a, b = fp8(3, 416, (1, block_a), seed=1), fp8(136, 416, (1, block_b), seed=2)
    recipe = {"recipe_a": (1, block_a), "recipe_b": (1, block_b)}
    given = catalog.Product(catalog.Factor(catalog.FP8.a.dtype, block_a), catalog.Factor(catalog.FP8.b.dtype, block_b))
    assert "swap" in kernel("fp8_gemm_nt", 3, 136, 416, product=given)
    same(ops.fp8_gemm_nt(a.fp32, b.fp32, **recipe), product(a, b))


@pytest.mark.parametrize("k", [1056, 1312])
def test_trap_39_shares_of_k_start_with_a_word_of_scales(k: int) -> None:
    """9 or 11 blocks of k for 8 CTAs; a word of scales serves 4 blocks, so shares are 4, 4 and the rest, or none."""
    a, b = fp8(3, k, seed=1), fp8(136, k, seed=2)
    for shape in (WarpShape(16, 128, (8, 1), swap=True, splits=8), WarpShape(64, 64, (2, 4), splits=4)):
        spec = catalog.scaled_gemm_sm120(catalog.FP8, shape)
        found = gemmgen.op(spec)(a=a.data, sfa=a.words[1], b=b.data, sfb=b.words[1])
        same(found, product(a, b))


def test_trap_39_shared_sums_of_4_and_8_bit_factors() -> None:
    """Words of 128 elements of k, or of 512; k is no multiple of either."""
    a, b = fp4(3, 6208, seed=1), fp4(136, 6208, seed=2)
    eight = fp8(3, 3104, seed=3), fp8(136, 3104, (128, 128), seed=4)
    assert "_split" in kernel("mxfp4_gemm_nt", 3, 136, 6208, MANY_SMS)
    assert "_split" in kernel("fp8_gemm_nt", 3, 136, 3104, MANY_SMS)
    with gemmgen.simulate("sm120", sms=MANY_SMS):
        same(ops.mxfp4_gemm_nt(a.e8m0, b.e8m0), product(a, b))
        same(ops.fp8_gemm_nt(eight[0].fp32, eight[1].fp32), product(*eight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "n", "width"), [(17, 136, 144), (31, 136, 136), (3, 33, 47), (18, 1, 1), (1, 1, 3)])
def test_trap_40_swapped_and_narrow_outputs_stay_inside(m: int, n: int, width: int, dtype: torch.dtype) -> None:
    """Outputs of 17 to 32 rows, odd columns and a single one; what lies around them is not touched."""
    a, b = fp8(m, 160, seed=1), fp8(n, 160, seed=2)
    frame = torch.full((m + 2, width), 99.0, dtype=dtype)
    view = frame[1 : m + 1, width - n :]
    assert ops.fp8_gemm_nt(a.words, b.words, view) is view
    same(view, product(a, b, dtype))
    view.fill_(99.0)
    assert bool((frame == 99.0).all())


def along_rows(factor: Factor) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit data [k, rows/2], two neighbours of a column of numbers in a byte, and scales [k/32, rows]."""
    return ops.transpose_packed_fp4(factor.data), factor.fp32[1].T.contiguous()


def test_trap_41_4_bit_numbers_paired_along_rows_are_paired_anew() -> None:
    """In every layout of both operators; a transpose of bytes would multiply the wrong halves."""
    a, b = fp4(18, 256, seed=1), fp4(24, 256, seed=2)
    eight, recipe = fp8(18, 256, (1, 32), seed=3), {"recipe": (1, 1, 32)}
    same(ops.fp8_fp4_gemm_nn(a.fp32, along_rows(b), **recipe), product(a, b))
    same(ops.fp8_fp4_gemm_tt(along_rows(a), b.fp32, **recipe), product(a, b))
    same(ops.fp8_fp4_gemm_tn(along_rows(a), along_rows(b), **recipe), product(a, b))
    same(ops.fp8_fp4_gemm_nn(eight.fp32, along_rows(b), **recipe), product(eight, b))
    scales = tuple(each.T for each in along_rows(b))
    same(ops.mxfp4_gemm_nt(a.e8m0, scales), product(a, b))


# ------------------------------------------------------------------------------------------------ shared sums


@pytest.mark.parametrize("schedule", ["late", "random", "starve"])
def test_shared_sums_have_the_same_bits_whoever_comes_last(schedule: str) -> None:
    """Numbers whose sum depends on its order, so that only a fixed order gives the same bits."""
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(rows, 2048, generator=generator).bfloat16() for rows in (3, 136))
    assert "_split" in kernel("bf16_gemm_nt", 3, 136, 2048, MANY_SMS)
    with gemmgen.simulate("sm120", sms=MANY_SMS):
        expected = ops.bf16_gemm_nt(a, b, out_dtype=torch.bfloat16)
    with gemmgen.simulate("sm120", schedule, seed=3, sms=MANY_SMS) as simulation:
        same(ops.bf16_gemm_nt(a, b), expected)
    assert not simulation.reports[0].warnings
    assert (expected.double() - a.double() @ b.double().T).abs().max() < 0.5
