"""What public work on FP4 for this architecture had to fix, each as a test: its trigger, run on the simulator.

Sums are exact and scales random, so that a scale, a pair of 4-bit numbers or an accumulator in the wrong place shows.
"""

from __future__ import annotations

import pytest
import torch
from planted.kernels import Subject
from sm100_problems import fp4, fp8, product

import gemmgen
from gemmgen import catalog, ops
from gemmgen.backends import lower
from gemmgen.catalog.dense_sm100 import Factor, PairShape, scaled_gemm_nt
from gemmgen.ir import Arch, DType, KernelSpec
from gemmgen.ops import relayout
from gemmgen.ops.quantise import pack_fp4, transpose_packed_fp4, unpack_fp4

TIMINGS = [("random", 1), ("late", 0)]


def kernel(kind: str, shape: PairShape, d: DType = DType.BF16) -> KernelSpec:
    """MXFP4, NVFP4, or FP8 times FP4."""
    fine, coarse = Factor(DType.E2M1, 32), Factor(DType.E4M3, 128)
    if kind == "nvfp4":
        return scaled_gemm_nt(Factor(DType.E2M1, 16), Factor(DType.E2M1, 16), shape, d, scale=DType.UE4M3X4)
    return scaled_gemm_nt(fine if kind == "mxfp4" else coarse, fine, shape, d)


def k_of(kind: str) -> int:
    """More than one K block, the last one short where that is allowed."""
    return 384 if kind == "mixed" else 288


# ------------------------------------------------------------------------------------------------ BLOCK_N


@pytest.mark.parametrize(
    ("width", "kind"),
    [(48, "mxfp4"), (64, "mxfp4"), (96, "mxfp4"), (112, "mxfp4"), (48, "nvfp4"), (112, "nvfp4"), (96, "mixed")],
)
def test_block_n_between_32_and_128_with_random_scales_of_b(width: int, kind: str) -> None:
    """The rows of B's scales past the 32nd were once those of the first 32 again, which uniform scales hide."""
    subject = Subject(kernel(kind, PairShape(width, slots=2)), 17, 2 * width + 8, k_of(kind))
    honest = subject.expected
    words = subject.inputs["sfb"]
    repeated = words.clone()
    repeated[32:width] = words[: width - 32]
    mistaken = Subject(subject.spec, subject.m, subject.n, subject.k)
    mistaken.inputs["sfb"] = repeated
    assert not torch.equal(mistaken.expected[:, 32:width], honest[:, 32:width]), "the mistake would show"
    subject.must_pass(TIMINGS[:1])


@pytest.mark.parametrize(
    ("width", "ctas", "kind"),
    [(80, 1, "mxfp4"), (96, 2, "nvfp4"), (160, 1, "nvfp4"), (160, 2, "mxfp4"), (224, 1, "mxfp4"), (224, 2, "nvfp4")],
)
def test_block_n_that_is_no_power_of_two(width: int, ctas: int, kind: str) -> None:
    spec = kernel(kind, PairShape(width, ctas, slots=2), DType.F32)
    Subject(spec, 129, width + 24, k_of(kind), sms=ctas).must_pass(TIMINGS[1:])


# ------------------------------------------------------------------------------------------------ two CTAs


@pytest.mark.parametrize(("kind", "m"), [("mxfp4", 512), ("nvfp4", 520), ("mixed", 640)])
def test_512_rows_and_more_on_pairs_of_ctas(kind: str, m: int) -> None:
    subject = Subject(kernel(kind, PairShape(64, 2, slots=2)), m, 72, k_of(kind), sms=4)
    assert lower(subject.spec).cluster.m == 2 and m // 256 >= 2
    subject.must_pass(TIMINGS)


def test_512_rows_are_offered_pairs_and_what_ships_is_right_there() -> None:
    chosen = [ops.spec_for("mxfp4_gemm_nt", 512, n, 512, 148, arch="sm100") for n in (2112, 4096, 7168, 24576)]
    assert any(spec.cluster.m == 2 for spec in chosen)
    a, b = fp4(512, 288, seed=1), fp4(136, 288, seed=2)
    pair = catalog.scaled_gemm_sm100(catalog.MXFP4, PairShape(128, ctas=2))
    with gemmgen.simulate("sm100", sms=2):
        d = gemmgen.op(pair)(a=a.data, sfa=a.words[1], b=b.data, sfb=b.words[1])
    assert torch.equal(d, product(a, b))


# ------------------------------------------------------------------------------------------------ waves


@pytest.mark.parametrize(("slots", "chosen", "kind"), [(1, 1, "mxfp4"), (2, 2, "nvfp4"), (None, 2, "mxfp4")])
def test_one_wave_and_many_with_one_accumulator_and_with_two(slots: int | None, chosen: int, kind: str) -> None:
    """Six tiles on six SMs, where every CTA uses the first slot once, and on one, where slots and phases come round."""
    spec = kernel(kind, PairShape(64, acc_slots=slots, slots=2))
    assert lower(spec).ring("acc").slots == chosen
    for sms, timing in ((6, TIMINGS[0]), (1, TIMINGS[0]), (1, TIMINGS[1]), (4, TIMINGS[1])):
        Subject(spec, 257, 72, k_of(kind), sms=sms).must_pass([timing])


def test_the_widest_tile_has_one_accumulator_and_is_right_over_many_waves() -> None:
    spec = kernel("mxfp4", PairShape(256, 2, slots=2))
    assert lower(spec).ring("acc").slots == 1
    for sms in (2, 8):
        Subject(spec, 300, 264, 288, sms=sms).must_pass(TIMINGS[:1])


# ------------------------------------------------------------------------------------------------ swapped factors


@pytest.mark.parametrize(
    ("m", "n", "kind"),
    [
        (1, 24, "mxfp4"),
        (31, 136, "nvfp4"),
        (33, 128, "mxfp4"),
        (63, 264, "nvfp4"),
        (17, 24, "mixed"),
        (33, 136, "mixed"),
    ],
)
def test_swapped_factors_with_partial_tiles(m: int, n: int, kind: str) -> None:
    """Fewer rows than a tile, and one more; fewer columns than lanes, and a few more: nothing beside D is written."""
    Subject(kernel(kind, PairShape(32, swap=True, slots=2)), m, n, k_of(kind)).must_pass(TIMINGS[:1])


@pytest.mark.parametrize("d", [DType.BF16, DType.F32])
def test_swapped_factors_on_pairs_with_partial_tiles(d: DType) -> None:
    """With fp32 outputs of 17 to 32 rows a store once went past the end; here D lies in NaN that must stay."""
    for m in (17, 32):
        Subject(kernel("mxfp4", PairShape(32, 2, swap=True, slots=2), d), m, 136, 288, sms=2).must_pass(TIMINGS[1:])


# ------------------------------------------------------------------------------------------------ 4-bit pairs


def test_transposes_of_mn_major_fp4_pair_the_right_numbers() -> None:
    """B comes as [k, n/2], two along n a byte. Transposing bytes keeps those pairs; all must be made anew."""
    a, b = fp8(17, 256, (1, 32), seed=1), fp4(40, 256, seed=2)
    codes = unpack_fp4(b.data)
    along_n = pack_fp4(codes.T.contiguous())  # [k, n/2]
    assert not torch.equal(along_n.T.contiguous().view(torch.uint8).flatten(), b.data.view(torch.uint8).flatten())
    recipe = {"recipe": (1, 1, 32)}
    with gemmgen.simulate("sm100"):
        for turned in (
            transpose_packed_fp4(along_n),
            relayout.moved(catalog.to_k_major(Arch.SM100, DType.E2M1), along_n.T),
        ):
            assert torch.equal(unpack_fp4(turned.contiguous()), codes)
            assert torch.equal(ops.fp8_fp4_gemm_nt(a.words, (turned, b.words[1]), **recipe), product(a, b))
        given = along_n, b.words[1].T
        assert torch.equal(ops.fp8_fp4_gemm_nn(a.words, given, **recipe), product(a, b))


def test_transposes_of_mn_major_fp4_for_both_factors() -> None:
    a, b = fp4(34, 160, seed=3), fp4(24, 160, seed=4)
    along_m, along_n = (pack_fp4(unpack_fp4(each.data).T.contiguous()) for each in (a, b))
    with gemmgen.simulate("sm100"):
        turned_a, turned_b = (transpose_packed_fp4(along_m), a.words[1]), (transpose_packed_fp4(along_n), b.words[1])
        assert torch.equal(ops.mxfp4_gemm_nt(turned_a, turned_b), product(a, b))
        given_a, given_b = (along_m, a.words[1].T), (along_n, b.words[1].T)
        assert torch.equal(ops.fp8_fp4_gemm_tn(given_a, given_b, recipe=(1, 1, 32)), product(a, b))
