"""Products of groups of k through the public operators, on the simulator, against float64 on what was passed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import pytest
import torch
from opchecks import opcheck

import gemmgen
from gemmgen import ops
from gemmgen.generate.k_grouped import k_grouped
from gemmgen.generate.operator import Operator
from gemmgen.runtime.errors import UnsupportedArchitecture

Layouts = tuple[torch.Tensor, list[slice]]


def counted(ks: Sequence[int]) -> Layouts:
    """Groups right behind one another."""
    ends = torch.tensor(ks).cumsum(0).tolist()
    return torch.tensor(ks, dtype=torch.int32), [slice(end - k, end) for k, end in zip(ks, ends, strict=True)]


def ended(ks: Sequence[int], alignment: int) -> Layouts:
    """Groups that start at multiples of the alignment."""
    spans, end = [], 0
    for k in ks:
        start = -(-end // alignment) * alignment
        end = start + k
        spans.append(slice(start, end))
    return torch.tensor([each.stop for each in spans], dtype=torch.int32), spans


def gapped(spans: list[slice], rows: int, columns: int) -> torch.Tensor:
    """bf16 numbers where groups are, NaN elsewhere."""
    values = torch.full((rows, columns), torch.nan)
    for span in spans:
        values[span] = torch.randn(span.stop - span.start, columns)
    return values.bfloat16()


def products(a: torch.Tensor, b: torch.Tensor, spans: list[slice]) -> torch.Tensor:
    return torch.stack([a[span].double().T @ b[span].double() for span in spans])


def close(d: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = 2.0**-8 if d.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(d.double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max() + 1e-9))


IN_PLACE = [
    ("sm90", torch.float32, [0, 128, 0, 256]),
    ("sm90", torch.bfloat16, [48, 0, 0]),
    ("sm100", torch.float32, [0, 96, 20, 0]),
    ("sm100", torch.bfloat16, [200]),
    ("sm120", torch.float32, [0, 96, 20, 0]),
    ("sm120", torch.bfloat16, [0]),
]


@pytest.mark.parametrize(("arch", "dtype", "ks"), IN_PLACE, ids=str)
def test_weight_gradients_in_place(arch: str, dtype: torch.dtype, ks: list[int]) -> None:
    layout, spans = counted(ks)
    a, b = gapped(spans, sum(ks), 72), gapped(spans, sum(ks), 40)
    c = torch.randn(len(ks), 72, 40).to(dtype)
    d = c.clone()
    with gemmgen.simulate(arch):
        assert ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, layout, d) is d
    close(d, products(a, b, spans) + c.double())


def test_c_of_its_own_and_outputs_that_lanes_store() -> None:
    layout, spans = counted([37, 0, 90])
    a, b = gapped(spans, 127, 64), gapped(spans, 127, 48)[:, :41]
    c, d = torch.randn(3, 64, 41), torch.full((3, 64, 41), torch.nan)
    with gemmgen.simulate("sm90"):
        ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [37, 0, 90], layout, c)
        e = ops.k_grouped_bf16_gemm_tn_contiguous(a, b, torch.full_like(d, torch.nan), None, layout)
    close(d, products(a, b, spans) + c.double())
    close(e, products(a, b, spans))


@pytest.mark.parametrize("ks", [None, [], [30, 0, 64]], ids=str)
def test_ends_with_rows_between_groups_that_hold_nan(ks: list[int] | None) -> None:
    before = ops.get_mk_alignment_for_contiguous_layout()
    layout, spans = ended([30, 0, 64], 32)
    a, b, d = gapped(spans, 128, 64), gapped(spans, 128, 32), torch.full((3, 64, 32), torch.nan)
    ops.set_mk_alignment_for_contiguous_layout(32)
    try:
        with gemmgen.simulate("sm90"):
            ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, layout, use_psum_layout=True)
    finally:
        ops.set_mk_alignment_for_contiguous_layout(before)
    close(d, products(a, b, spans))


@pytest.mark.parametrize(
    ("numbers", "psum"), [([-5, 300, 7], True), ([2**31 - 1, -(2**31), 40], False), ([90, 90, 90], False)], ids=str
)
def test_sizes_that_are_none_stay_inside(numbers: list[int], psum: bool) -> None:
    """No fault, nothing outside the outputs, every group written."""
    a, b, d = torch.randn(100, 64).bfloat16(), torch.randn(100, 32).bfloat16(), torch.full((3, 64, 32), torch.nan)
    with gemmgen.simulate("sm90"):
        ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, torch.tensor(numbers).int(), use_psum_layout=psum)
    assert d.isfinite().all()


def flat(groups: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in groups]) if groups else torch.empty(0)


ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "blocks first": lambda scales: scales,
    "rows first": lambda scales: scales.T,
    "rows first, blocks contiguous": lambda scales: scales.T.contiguous(),
}
"""Scales [k/128, rows] as callers have them: DeepGEMM's pass ``sf.T``."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("m", "n", "residual"), [(72, 40, True), (70, 36, False), (64, 41, True)], ids=["TMA", "lanes", "direct"]
)
def test_fp8_factors_that_lie_group_by_group(m: int, n: int, residual: bool, order: str) -> None:
    """Scales of 70 rows have a pitch that TMA refuses, and outputs of 41 columns one that it stores to."""
    group_by_group([0, 128, 0, 256], m, n, residual, order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("m", "n"), [(4, 8), (8, 4)])
def test_as_many_rows_as_blocks_are_ordered_as_the_other_factors(m: int, n: int, order: str) -> None:
    group_by_group([128, 384], m, n, True, order)


@pytest.mark.parametrize("order", ["blocks first", "rows first"])
def test_where_both_have_as_many_rows_as_blocks_rows_are_contiguous(order: str) -> None:
    group_by_group([128, 384], 4, 4, True, order)


@pytest.mark.parametrize(("m", "n"), [(0, 8), (8, 0), (0, 0)])
@pytest.mark.parametrize("order", ["blocks first", "rows first"])
def test_factors_without_rows(m: int, n: int, order: str) -> None:
    factors = [
        (torch.empty(rows * 256, dtype=torch.float8_e4m3fn), ORDERS[order](torch.ones(2, rows))) for rows in (m, n)
    ]
    d = torch.empty(1, m, n)
    with gemmgen.simulate("sm90"):
        assert ops.k_grouped_fp8_gemm_nt_contiguous(*factors, d, None, torch.tensor([256]).int()) is d


def group_by_group(ks: list[int], m: int, n: int, residual: bool, order: str) -> None:
    wanted, data, scales = [], {"a": [], "b": []}, {"a": [], "b": []}
    for k in ks:
        parts = []
        for name, rows in (("a", m), ("b", n)):
            x, sf = ops.per_token_cast_to_fp8(torch.randn(rows, max(k, 128)), use_ue8m0=False)
            x, sf = x[:, :k], sf[:, : k // 128]
            data[name].append(x)
            scales[name].append(sf.T)
            parts.append(x.double() * sf.double().repeat_interleave(128, 1))
        wanted.append(parts[0] @ parts[1].T)
    pairs = {name: (flat(data[name]), ORDERS[order](torch.cat(scales[name]).contiguous())) for name in "ab"}
    c = torch.randn(len(ks), m, n)
    d = c.clone() if residual else torch.full_like(c, torch.nan)
    with gemmgen.simulate("sm90"):
        ops.k_grouped_fp8_gemm_nt_contiguous(
            pairs["a"], pairs["b"], d, ks, torch.tensor(ks).int(), d if residual else None
        )
    close(d, torch.stack(wanted) + (c.double() if residual else 0))


def scaled(
    spans: list[slice], ks: Sequence[int], columns: int, gran: int, rows: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """e4m3 data with NaN between groups, fp32 scales of every group one behind the other, and what both mean."""
    rows = max([rows, *(span.stop for span in spans)])
    data = torch.full((rows, columns), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    meant, scales = torch.zeros(rows, columns, dtype=torch.float64), []
    for span in spans:
        k = span.stop - span.start
        sf = 2.0 ** torch.randint(-3, 4, (-(-k // gran), columns))
        data[span] = torch.randn(k, columns).to(torch.float8_e4m3fn)
        meant[span] = data[span].double() * sf.double().repeat_interleave(gran, 0)[:k]
        scales.append(sf)
    return data, torch.cat(scales), meant


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
@pytest.mark.parametrize(
    ("gran", "form", "psum", "known"),
    [
        (128, "fp32", False, "exactly"),
        (32, "words", True, "by nobody"),
        (32, "fp32", True, "exactly"),
        (32, "fp32", True, "aligned"),
        (128, "words", True, "aligned"),
    ],
)
def test_fp8_factors_along_m_and_n(arch: str, gran: int, form: str, psum: bool, known: str) -> None:
    """DeepGEMM's callers know groups that are aligned by where they end, and scale what these have."""
    ks, m, n = [32, 0, 160, 96 if psum else 544], 80, 48
    if known == "aligned":
        ks[0], ks[2] = 27, 133
    host = {"exactly": ks, "aligned": [-(-k // 128) * 128 for k in ks], "by nobody": None}[known]
    layout, spans = ended(ks, 128) if psum else counted(ks)
    behind = sum(host or ()) if known == "aligned" else 0
    (a, sfa, meant_a), (b, sfb, meant_b) = scaled(spans, ks, m, gran, behind), scaled(spans, ks, n, gran, behind)
    c = torch.randn(len(ks), m, n)
    d = c.clone()
    if form == "words":
        pack = ops.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
        sfa, sfb = (pack(sf, layout, host or ks, gran, 128, psum) for sf in (sfa, sfb))
    with gemmgen.simulate(arch):
        ops.k_grouped_fp8_gemm_tn_contiguous((a, sfa), (b, sfb), d, host, layout, d, (1, 1, gran), use_psum_layout=psum)
    close(d, products(meant_a, meant_b, spans) + c.double())


@pytest.mark.parametrize("gran", [32, 128])
@pytest.mark.parametrize("known", [True, False])
def test_words_of_every_group_begin_anew(gran: int, known: bool) -> None:
    ks, mn = [96, 0, 640, 32], 6
    layout, _ = ended(ks, 160)
    codes = torch.randint(1, 254, (sum(-(-k // gran) for k in ks), mn))
    sf = 2.0 ** (codes.float() - 127)
    words = ops.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, layout, ks if known else [], gran, 160, True)
    wanted, first = [], 0
    for k in ks:
        count = -(-k // gran)
        padded = torch.zeros(-(-count // 4) * 4, mn, dtype=torch.int64)
        padded[:count] = codes[first : first + count]
        wanted.append(sum(padded[byte::4] << 8 * byte for byte in range(4)))
        first += count
    whole = torch.cat(wanted).int()
    assert words.stride() == (8, 1) and torch.equal(words[: len(whole)], whole) and not words[len(whole) :].any()
    assert len(words) == len(whole) if known else len(words) >= len(whole)


def refused(says: str, error: type[Exception] = ValueError, **changes: object) -> None:
    arguments: dict[str, object] = {
        "a": torch.zeros(64, 64).bfloat16(),
        "b": torch.zeros(64, 32).bfloat16(),
        "d": torch.zeros(2, 64, 32),
        "ks_cpu": [32, 32],
        "grouped_layout": torch.tensor([32, 32]).int(),
    }
    with gemmgen.simulate("sm90"), pytest.raises(error, match=says):
        ops.k_grouped_bf16_gemm_tn_contiguous(**{**arguments, **changes})  # type: ignore[arg-type]


def test_refusals_are_sentences() -> None:
    refused(r"ks_cpu: has 1 sizes, but d has 2 groups", ks_cpu=[64])
    refused(r"ks_cpu: groups end at 65, but k of a is 64", ks_cpu=[32, 33])
    refused(r"ks_cpu: groups end at 63, but k of a is 64", ks_cpu=[32, 31])
    refused(r"ks_cpu: group 0 has -1 of k", ks_cpu=[-1, 65])
    refused(r"layout: dtype is torch.int64", TypeError, grouped_layout=torch.tensor([32, 32]))
    refused(r"grouped_layout: has 3 numbers, but d has 2 groups", grouped_layout=torch.zeros(3).int())
    refused(r"a: has 1 dimensions; must be \[k, m\]", a=torch.zeros(64).bfloat16())
    refused(r"b: k is 60, but k of a is 64", b=torch.zeros(60, 32).bfloat16())
    refused(r"a: strides are .*needs m .*contiguous", a=torch.zeros(64, 64).bfloat16().T)
    refused(r"d: dtype is torch.float16", TypeError, d=torch.zeros(2, 64, 32).half())
    refused(r"c: dtype is torch.bfloat16", TypeError, c=torch.zeros(2, 64, 32).bfloat16())
    refused(r"d: its memory .*overlaps", d=(x := torch.zeros(3, 64, 32))[1:], c=x[:2])


def test_fp8_refusals_are_sentences() -> None:
    a = (torch.zeros(64 * 128, dtype=torch.float8_e4m3fn), torch.ones(1, 64))
    layout, d = torch.tensor([128]).int(), torch.zeros(1, 64, 64)
    with gemmgen.simulate("sm90"):
        for says, changes in (
            (r"recipe: is \(1, 1, 32\); must be \(1, 1, 128\)", {"recipe": (1, 1, 32)}),
            (r"use_psum_layout: is True", {"use_psum_layout": True}),
            (r"ks_cpu: group 0 has 64 of k; must be a multiple of 128", {"ks_cpu": [64]}),
            (
                r"sfa: shape is \(2, 64\); must be \(64, 1\) or \(1, 64\), one for 128 of k of each of 64 rows",
                {"a": (a[0], torch.ones(2, 64)), "ks_cpu": None},
            ),
            (
                r"b: has 16384 elements, 256 of k for each of 64 rows, but a has 128 for each of 64; they must be",
                {"b": (torch.cat([a[0]] * 2)[: 128 * 128], a[1]), "ks_cpu": None},
            ),
            (r"a: has 2 dimensions; must be flat", {"a": (a[0].view(64, 128), a[1])}),
        ):
            arguments = {"a": a, "b": a, "d": d, "ks_cpu": [128], "grouped_layout": layout, **changes}
            with pytest.raises(ValueError, match=says):
                ops.k_grouped_fp8_gemm_nt_contiguous(**arguments)  # type: ignore[arg-type]


def test_fp8_along_m_and_n_refuses_in_sentences() -> None:
    a, b = torch.zeros(64, 64, dtype=torch.float8_e4m3fn), torch.zeros(64, 32, dtype=torch.float8_e4m3fn)
    arguments = {"a": (a, torch.ones(2, 64)), "b": (b, torch.ones(2, 32)), "d": torch.zeros(1, 64, 32), "ks_cpu": [64]}
    arguments |= {"grouped_layout": torch.tensor([64]).int(), "recipe": (1, 1, 32)}
    for arch, says, error, changes in (
        ("sm100", r"recipe: is \(1, 128, 128\); must be", ValueError, {"recipe": (1, 128, 128)}),
        ("sm100", r"sfa: shape is \(1, 64\); must have 2 rows, one for 32", ValueError, {"a": (a, torch.ones(1, 64))}),
        (
            "sm100",
            r"sfb: scale \(0, 0\) is 3.0, one of 64 that are no power",
            ValueError,
            {"b": (b, torch.full((2, 32), 3.0))},
        ),
        ("sm100", r"ks_cpu: group 0 has 60 of k; must be a multiple of 32", ValueError, {"ks_cpu": [60]}),
        (
            "sm100",
            r"sfa: shape is \(3, 64\); must have 2 to 2 rows, one for 32 of k that every group has",
            ValueError,
            {"a": (a, torch.ones(3, 64)), "use_psum_layout": True},
        ),
        (
            "sm120",
            r"sfb: shape is \(4, 32\); must have 5 to 8 rows, one for 32 of k that every group has",
            ValueError,
            {
                "a": (torch.cat([a] * 4), torch.ones(5, 64)),
                "b": (torch.cat([b] * 4), torch.ones(4, 32)),
                "ks_cpu": [256],
                "use_psum_layout": True,
            },
        ),
        ("sm90", r"there is no kernel for sm90, whose 8-bit factors lie along k", UnsupportedArchitecture, {}),
    ):
        with gemmgen.simulate(arch), pytest.raises(error, match=says):
            ops.k_grouped_fp8_gemm_tn_contiguous(**{**arguments, **changes})  # type: ignore[arg-type]


def test_sizes_whose_products_pass_31_bits_are_taken() -> None:
    """P12: k * m, and bytes of all outputs; on meta tensors, which have no memory."""
    k, m, n, groups = 300032, 7168, 7168, 48
    a, b = torch.empty(k, m, dtype=torch.bfloat16, device="meta"), torch.empty(
        k, n, dtype=torch.bfloat16, device="meta"
    )
    d, layout = torch.empty(groups, m, n, device="meta"), torch.empty(groups, dtype=torch.int32, device="meta")
    assert ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [k // 8] * 8 + [0] * 40, layout, d) is d
    flat = torch.empty(k * m, dtype=torch.float8_e4m3fn, device="meta"), torch.empty(k // 128, m, device="meta")
    assert ops.k_grouped_fp8_gemm_nt_contiguous(flat, flat, d, [k // 8] * 8 + [0] * 40, layout, d) is d


def test_registered_operators_keep_their_word() -> None:
    layout, spans = counted([40, 24])
    a, b, c = gapped(spans, 64, 64), gapped(spans, 64, 32), torch.randn(2, 64, 32)
    with gemmgen.simulate("sm90"):
        opcheck(torch.ops.gemmgen.k_grouped_bf16_gemm.default, a, b, layout, c, "counts", 1, torch.zeros(2, 64, 32))


def test_a_compiled_call_is_one_graph() -> None:
    layout, spans = counted([40, 24])
    a, b, d = gapped(spans, 64, 64), gapped(spans, 64, 32), torch.zeros(2, 64, 32)

    def step(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
        return ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [40, 24], layout, d) * 2

    with gemmgen.simulate("sm90"):
        doubled = torch.compile(step, fullgraph=True, backend="aot_eager")(a, b, d, layout)
    close(d, products(a, b, spans))
    torch.testing.assert_close(doubled, d * 2)


@pytest.mark.parametrize("operator", k_grouped(), ids=lambda operator: operator.name)
def test_every_parameter_has_a_sentence(operator: Operator) -> None:
    assert sorted(inspect.signature(getattr(ops, operator.name)).parameters) == sorted(operator.parameters)


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
def test_fp8_without_any_of_k_leaves_c(arch: str) -> None:
    none = torch.zeros(0, 64, dtype=torch.float8_e4m3fn), torch.ones(0, 64)
    c, d = torch.randn(2, 64, 64), torch.full((2, 64, 64), torch.nan)
    with gemmgen.simulate(arch):
        ops.k_grouped_fp8_gemm_tn_contiguous(none, none, d, [0, 0], torch.zeros(2).int(), c)
        assert torch.equal(d, c)
