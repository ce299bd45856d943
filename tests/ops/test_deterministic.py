"""With ``use_deterministic_algorithms`` a row's bits depend neither on how many rows there are nor on the tile.

Exact sums are 0, so what comes out is what rounding leaves, and any other order along k shows in most of the numbers,
in bf16 too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from grouped_problems import along_m

import gemmgen
from gemmgen import ops
from gemmgen.catalog import finished_output
from gemmgen.ir import DType, KernelSpec
from gemmgen.ops.admission import shares_k
from gemmgen.ops.family import Candidate
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.selection import Choices, select

ARCHS = ("sm90", "sm100", "sm120")
M, N, K = 100, 72, 2048
HALF = K // 2
SMS = 12
"""With which rows of 1, 40 and 100 are shared by other numbers of CTAs, if they may be."""
E4M3 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    ops.use_deterministic_algorithms(True)
    yield
    ops.use_deterministic_algorithms(False)
    ops.set_mk_alignment_for_contiguous_layout(128)


def cancelling(rows: int, dtype: torch.dtype, sign: int, seed: int) -> torch.Tensor:
    """Random numbers of unlike sizes, and behind them the same a block further on, times ``sign``."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp2(torch.randint(-5, 6, (rows, HALF), generator=generator).float())
    first = (torch.randn(rows, HALF, generator=generator) * spread).to(dtype).float()
    return torch.cat([first, sign * first.roll(128, 1)], 1).to(dtype)


def of_blocks(rows: int, seed: int) -> torch.Tensor:
    """Scales that are powers of two, of the second half those of the first a block further on."""
    codes = torch.randint(-8, 9, (rows, HALF // 128), generator=torch.Generator().manual_seed(seed))
    return torch.exp2(torch.cat([codes, codes.roll(1, 1)], 1).float())


A, B = cancelling(M, torch.bfloat16, 1, 1), cancelling(N, torch.bfloat16, -1, 2)
A8, SFA = cancelling(M, E4M3, 1, 3), of_blocks(M, 5)
B8, SFB = cancelling(N, E4M3, -1, 4), of_blocks(1, 6)


def bf16(m: int, **named: Any) -> torch.Tensor:
    return ops.bf16_gemm_nt(A[:m], B, **named)


def fp8(m: int, **named: Any) -> torch.Tensor:
    return ops.fp8_gemm_nt((A8[:m], along_m(SFA[:m])), (B8, SFB), **named)


Call = Callable[..., torch.Tensor]


def several(call: Call, arch: str, rows: tuple[int, ...], **named: Any) -> list[torch.Tensor]:
    with gemmgen.simulate(arch, sms=SMS):
        return [call(m, **named) for m in rows]


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("call", [bf16, fp8], ids=lambda call: call.__name__)
@pytest.mark.parametrize("arch", ARCHS)
def test_rows_have_the_same_bits_in_any_company(arch: str, call: Call, out_dtype: torch.dtype) -> None:
    whole, *parts = several(call, arch, (M, 1, 40), out_dtype=out_dtype)
    assert whole.count_nonzero() > whole.numel() // 2, "rounding leaves nothing to compare"
    for part in parts:
        assert torch.equal(part, whole[: len(part)])


@pytest.mark.parametrize(("arch", "call"), [("sm90", bf16), ("sm90", fp8), ("sm120", bf16), ("sm120", fp8)])
def test_without_it_they_do_not(arch: str, call: Call) -> None:
    """So that the test above has something to find. On sm100 such products are not split."""
    ops.use_deterministic_algorithms(False)
    whole, *parts = several(call, arch, (M, 1, 40))
    assert not all(torch.equal(part, whole[: len(part)]) for part in parts)


@pytest.mark.parametrize("n", [576, 2048])
@pytest.mark.parametrize("finish", ["bias", "bias_relu", "bias_silu"])
def test_a_bias_is_added_first_by_all_tiles_or_by_none(finish: str, n: int) -> None:
    """Tiles of sm90 that swap, or cut their last wave, add it behind the sum in FP8, where others start from it."""
    ops.use_deterministic_algorithms(False)
    assert {kernel_of(each.spec).plan.starts for each in _tiles(finish, n)} == {True, False}
    ops.use_deterministic_algorithms(True)
    left = [kernel_of(each.spec).plan.starts for each in _tiles(finish, n)]
    assert len(left) > 5 and all(left)


def _tiles(finish: str, n: int) -> tuple[Candidate, ...]:
    return select(f"fp8_gemm_nt_{finish}", 64, n, 1024, 132, Choices()).candidates


def grouped_bf16(layout: torch.Tensor, counts: list[int], **named: Any) -> torch.Tensor:
    a = torch.cat([A[:count] for count in counts])
    return ops.m_grouped_bf16_gemm_nt_contiguous(a, torch.stack([B, B]), None, layout, offsets=True, **named)


def grouped_fp8(layout: torch.Tensor, counts: list[int], **named: Any) -> torch.Tensor:
    a, sfa = (torch.cat([each[:count] for count in counts]) for each in (A8, SFA))
    pair = (torch.stack([B8, B8]), torch.stack([SFB, SFB]))
    return ops.m_grouped_fp8_gemm_nt_contiguous((a, sfa), pair, None, layout, offsets=True, **named)


@pytest.mark.parametrize("call", [grouped_bf16, grouped_fp8], ids=lambda call: call.__name__)
@pytest.mark.parametrize("arch", ARCHS)
def test_groups_have_the_bits_of_dense_products(arch: str, call: Callable[..., torch.Tensor]) -> None:
    (dense,) = several(bf16 if call is grouped_bf16 else fp8, arch, (M,), out_dtype=torch.float32)
    for counts in ([1, 3], [0, 70]):
        layout = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        with gemmgen.simulate(arch, sms=SMS):
            d = call(layout, counts, out_dtype=torch.float32)
        assert torch.equal(d, torch.cat([dense[:count] for count in counts]))


@pytest.mark.parametrize("arch", ARCHS)
def test_masked_groups_have_them_too(arch: str) -> None:
    (dense,) = several(fp8, arch, (M,), out_dtype=torch.float32)
    b = torch.stack([B8, B8]), torch.stack([SFB, SFB])
    for m, counts in ((4, [1, 4]), (72, [70, 0])):
        a = A8[:m].expand(2, -1, -1).contiguous(), SFA[:m].expand(2, -1, -1).contiguous()
        with gemmgen.simulate(arch, sms=SMS):
            masked = torch.tensor(counts, dtype=torch.int32)
            d = ops.m_grouped_fp8_gemm_nt_masked(a, b, None, masked, out_dtype=torch.float32)
        assert all(torch.equal(d[group, :count], dense[:count]) for group, count in enumerate(counts))


# ------------------------------------------------------------------------------------------------ every kernel


def in_blocks(rows: int, sign: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers and a power of two for every block of k: two of 128, and behind them the same times ``sign``.

    Sums of one block are exact, because the simulator adds up a product in an order that depends on its columns.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-8, 9, (rows, 256), generator=generator).float()
    powers = torch.exp2(torch.randint(-16, 17, (rows, 2), generator=generator).float())
    return torch.cat([numbers, sign * numbers], 1), powers.repeat(1, 2)


SHORT = 512
(SHORT_A, SHORT_SFA), (SHORT_B, SHORT_SFB) = in_blocks(M, 1, 7), in_blocks(N, -1, 8)


def spread(numbers: torch.Tensor, powers: torch.Tensor) -> torch.Tensor:
    return (numbers * powers.repeat_interleave(128, 1)).bfloat16()


def run(spec: KernelSpec, m: int, n: int, **others: torch.Tensor) -> torch.Tensor:
    """One kernel of a choice on the first rows."""
    given: dict[str, Any]
    if spec.operand("a").dtype == DType.BF16:
        given = {"a": spread(SHORT_A, SHORT_SFA)[:m], "b": spread(SHORT_B, SHORT_SFB)[:n]}
    else:
        sfa, sfb = SHORT_SFA[:m], SHORT_SFB[:1]
        if spec.arch == "sm90":
            sfa = along_m(sfa)
        else:
            sfa = ops.transform_sf_into_required_layout(sfa, m, SHORT, (1, 128), arch=spec.arch)
            sfb = ops.transform_sf_into_required_layout(sfb, n, SHORT, (128, 128), arch=spec.arch)
        given = {"a": SHORT_A[:m].to(E4M3), "sfa": sfa, "b": SHORT_B[:n].to(E4M3), "sfb": sfb}
    with gemmgen.simulate(spec.arch, sms=4):
        d = gemmgen.op(spec)(**given, **others)
    assert isinstance(d, torch.Tensor)
    return d


def check_all_alike(candidates: tuple[Candidate, ...], m: int, n: int, **others: torch.Tensor) -> None:
    first, *rest = candidates
    expected = run(first.spec, m, n, **others)
    assert len(rest) > 1 and bool(expected.count_nonzero() > expected.numel() // 5)
    for each in rest:
        assert torch.equal(run(each.spec, m, n, **others), expected), each.spec.name


@pytest.mark.parametrize("operator", ["bf16_gemm_nt", "fp8_gemm_nt"])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("d", [DType.BF16, DType.F32])
def test_every_kernel_that_is_left_adds_up_in_the_same_order(arch: str, operator: str, d: DType) -> None:
    m, n = 20, 72
    check_all_alike(select(operator, m, n, SHORT, SMS, Choices(arch=arch, d=d)).candidates, m, n)


@pytest.mark.parametrize("operator", ["bf16_gemm_nt", "fp8_gemm_nt"])
@pytest.mark.parametrize("arch", ARCHS)
def test_what_finishes_a_product(arch: str, operator: str) -> None:
    """Every third tile: of each kind there are several in turn."""
    m, n = 20, 72
    epilogue = finished_output(DType.BF16, False, DType.F32, "silu")
    candidates = select(operator, m, n, SHORT, SMS, Choices(arch=arch, epilogue=epilogue)).candidates
    check_all_alike(candidates[::3], m, n, bias=torch.randn(n, generator=torch.Generator().manual_seed(9)))


# ------------------------------------------------------------------------------------------------ the choice


def test_a_tuned_file_does_not_bring_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of the package are for a whole H100."""
    problem: dict[str, Any] = {"m": 64, "n": 2112, "k": 7168, "sms": 132}
    choices = Choices(card="NVIDIA H100 80GB HBM3")
    ops.use_deterministic_algorithms(False)
    before = select("fp8_gemm_nt", **problem, choices=choices)
    ops.use_deterministic_algorithms(True)
    after = select("fp8_gemm_nt", **problem, choices=choices)
    assert before.measured is not None and shares_k(before.picked.spec)
    assert not any(shares_k(each.spec) for each in after.candidates)


@pytest.mark.parametrize("m", [1, 13, 64, 4096])
@pytest.mark.parametrize("arch", ARCHS)
def test_there_is_always_a_kernel_left(arch: str, m: int) -> None:
    for operator in ops.OPERATORS:
        if arch == "sm90" and operator not in ("fp8_gemm_nt", *(name for name in ops.OPERATORS if "bf16" in name)):
            continue
        for k in (128, 16384):
            assert not shares_k(select(operator, m, 576, k, 132, Choices(arch=arch)).picked.spec)


def test_the_prenorm_product() -> None:
    """Whose kernels share K of few rows otherwise, and cut it where their number says."""
    a, b = A[:, :1024], B[:24, :1024].float()
    for arch in ARCHS:
        for splits in (None, 3):
            outputs = []
            for m in (40, 1):
                axes = () if splits is None else (splits,)
                d, squares = torch.empty(*axes, m, 24), torch.empty(*axes, m)
                with gemmgen.simulate(arch, sms=SMS):
                    ops.tf32_hc_prenorm_gemm(a[:m], b, d, squares, splits)
                outputs.append((d, squares))
            whole, *parts = outputs
            for d, squares in parts:
                m = squares.shape[-1]
                assert torch.equal(d, whole[0][..., :m, :]) and torch.equal(squares, whole[1][..., :m])


# ------------------------------------------------------------------------------------------------ the setting


def test_it_is_one_flag_for_the_process() -> None:
    assert ops.get_deterministic_algorithms()
    ops.use_deterministic_algorithms(False)
    assert not ops.get_deterministic_algorithms()
    for value in (1, "yes", None):
        with pytest.raises(TypeError, match=r"^enabled: is .*; must be True or False$"):
            ops.use_deterministic_algorithms(value)  # type: ignore[arg-type]
