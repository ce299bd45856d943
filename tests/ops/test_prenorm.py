"""``tf32_hc_prenorm_gemm`` on the simulator of each architecture that has it: sums, splits, refusals, registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opchecks import opcheck
from prenorm_problems import allowed, exact, expected, framed, normal

import gemmgen
from gemmgen import catalog, ops
from gemmgen.backends import lower, table
from gemmgen.catalog import PrenormShape, tf32_hc_prenorm_gemm
from gemmgen.ops import library
from gemmgen.ops.choice_prenorm import prenorm_spec
from gemmgen.runtime.errors import UnsupportedArchitecture

ARCHS = tuple(catalog.PRENORM_COLUMNS)
SMS = 6
SCHEDULES = ("early", "late", "random", "starve")
PROBLEMS = [
    (1, 8, 64, None),
    (70, 24, 64 * 9, None),
    (65, 32, 64 * 13, 3),
    (13, 16, 64 * 5, 7),
    (40, 24, 64 * 6, 1),
    (130, 8, 64 * 3, None),
    (150, 8, 64 * 5, 5),
]
"""m, n, k, splits: one row, two tiles, a remainder of blocks, more splits than blocks, a single slice, many tiles."""


def shapes(m: int, n: int, splits: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return ((m, n), (m,)) if splits is None else ((splits, m, n), (splits, m))


def run(a: torch.Tensor, b: torch.Tensor, splits: int | None, arch: str, schedule: str) -> tuple[torch.Tensor, ...]:
    """Both outputs; nothing beside them is written and the simulator warns of nothing."""
    of_d, of_sum = shapes(a.shape[0], b.shape[0], splits)
    d, sqr_sum = framed(*of_d, pad=16), framed(*of_sum)
    with gemmgen.simulate(arch, schedule=schedule, seed=1, sms=SMS) as simulation:
        ops.tf32_hc_prenorm_gemm(a, b, d.view, sqr_sum.view, splits)
    assert d.intact() and sqr_sum.intact()
    assert not [warning for report in simulation.reports for warning in report.warnings]
    return d.view, sqr_sum.view


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("m", "n", "k", "splits"), PROBLEMS)
def test_whole_numbers_are_summed_exactly(arch: str, m: int, n: int, k: int, splits: int | None) -> None:
    a, b = exact(m, n, k)
    products, squares = expected(a, b, splits or 1, arch, SMS)
    for schedule in SCHEDULES:
        d, sqr_sum = run(a, b, splits, arch, schedule)
        assert torch.equal(d.double(), products.view(d.shape))
        assert torch.equal(sqr_sum.double(), squares.view(sqr_sum.shape))


FORMS = {
    (1, None): "64x24_k128_shared",
    (132 * 64, None): "64x24_k128_shared",
    (132 * 64 + 1, None): "64x24_x2",
    (8 * 64, 16): "slices_64x24_k128_shared",
    (8 * 64 + 1, 16): "slices_64x24_x2",
    (16 * 64, 16): "slices_64x24_x2",
    (17 * 64, 16): "slices_128x24_x2",
}
"""By m and splits, on 132 SMs: as long as every CTA has an SM its warpgroups share K."""


@pytest.mark.parametrize(("m", "splits"), FORMS)
def test_the_form_follows_from_tiles_and_sms(m: int, splits: int | None) -> None:
    assert prenorm_spec(m, 20, 132, "sm90", splits).name == f"sm90_tf32_hc_prenorm_gemm_{FORMS[m, splits]}"


@pytest.mark.parametrize(("k", "slices"), [(64, 3), (64, None), (128, 3)])
@pytest.mark.parametrize("ahead", [True, False])
def test_warpgroups_may_share_k(k: int, slices: int | None, ahead: bool) -> None:
    """More tiles than CTAs, so that sums meet at the same place again; with splits that meet and with slices."""
    spec = tf32_hc_prenorm_gemm(PrenormShape(64, 24, groups=2, k=k, share_k=True, ahead=ahead), slices is not None)
    assert "K steps shared by 2 warpgroups" in table(lower(spec))
    a, b = exact(140, 24, 64 * 5)
    products, squares = expected(a, b)
    for schedule in ("random", "starve"):
        d, sqr_sum = (torch.full(shape, torch.nan) for shape in shapes(140, 24, slices))
        with gemmgen.simulate("sm90", schedule=schedule, seed=1, sms=2) as simulation:
            gemmgen.op(spec)(a=a, b=b, d=d, sqr_sum=sqr_sum)
        assert not [warning for report in simulation.reports for warning in report.warnings]
        assert torch.equal((d if slices is None else d.sum(0)).double(), products.view(140, 24))
        assert torch.equal((sqr_sum if slices is None else sqr_sum.sum(0)).double(), squares.view(140))


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
def test_up_to_128_columns_on_blackwell(arch: str) -> None:
    for n in (40, 104, 128):
        a, b = exact(20, n, 64 * 3)
        d, sqr_sum = run(a, b, None, arch, "random")
        products, squares = expected(a, b)
        assert torch.equal(d.double(), products[0]) and torch.equal(sqr_sum.double(), squares[0])
    with (
        gemmgen.simulate(arch),
        pytest.raises(ValueError, match="b: n is 136; must be a multiple of 8 from 8 to 128"),
    ):
        ops.tf32_hc_prenorm_gemm(**arguments(n=136))


@pytest.mark.parametrize("arch", ARCHS)
def test_normal_numbers_are_summed_to_rounding_and_to_the_same_bits_under_every_schedule(arch: str) -> None:
    a, b = normal(70, 24, 64 * 13)
    (products, squares), (of_products, of_squares) = expected(a, b), allowed(a, b)
    first, *others = [run(a, b, None, arch, schedule) for schedule in SCHEDULES]
    assert bool(((first[0].double() - products[0]).abs() <= of_products).all())
    assert bool(((first[1].double() - squares[0]).abs() <= of_squares).all())
    assert all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True))


def test_no_rows_launch_nothing() -> None:
    with gemmgen.simulate("sm90") as simulation:
        for splits in (None, 1, 3):
            d, sqr_sum = (torch.empty(shape) for shape in shapes(0, 24, splits))
            ops.tf32_hc_prenorm_gemm(*exact(0, 24, 64), d, sqr_sum, splits)
    assert not simulation.reports


def test_numbers_of_splits_of_any_kind() -> None:
    given = arguments(splits=2)
    with gemmgen.simulate("sm90", sms=2):
        ops.tf32_hc_prenorm_gemm(**{**given, "num_splits": np.int64(2)})
    assert torch.equal(given["d"].sum(0), given["a"].float() @ given["b"].T)


def arguments(m: int = 4, n: int = 8, k: int = 64, splits: int | None = None) -> dict[str, Any]:
    a, b = exact(m, n, k)
    d, sqr_sum = (torch.empty(shape) for shape in shapes(m, n, splits))
    return {"a": a, "b": b, "d": d, "sqr_sum": sqr_sum, "num_splits": splits}


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception], str]] = {
    "k": (lambda: arguments(k=72), ValueError, "a: k is 72; must be a multiple of 64 and not 0, so pad"),
    "k of 0": (lambda: arguments(k=0), ValueError, "a: k is 0; must be a multiple of 64 and not 0"),
    "n": (lambda: arguments(n=12), ValueError, "b: n is 12; must be a multiple of 8 from 8 to 32 on sm90, so pad"),
    "n too large": (lambda: arguments(n=40), ValueError, "b: n is 40; must be a multiple of 8 from 8 to 32 on sm90"),
    "type of a": (lambda: {**arguments(), "a": torch.ones(4, 64)}, TypeError, "a: dtype is torch.float32; must be"),
    "type of b": (
        lambda: {**arguments(), "b": torch.ones(8, 64, dtype=torch.bfloat16)},
        TypeError,
        "b: dtype is torch.bfloat16; must be torch.float32; pass b.to",
    ),
    "rank of d": (
        lambda: {**arguments(), "d": torch.empty(1, 4, 8)},
        ValueError,
        r"d: shape \(1, 4, 8\) has 3 dimensions; must have 2: \(m, n\)",
    ),
    "rank of d with splits": (
        lambda: {**arguments(splits=2), "d": torch.empty(4, 8)},
        ValueError,
        r"d: shape is \(4, 8\); with num_splits=2 it must be \[num_splits, m, n\]",
    ),
    "other splits": (
        lambda: {**arguments(splits=2), "num_splits": 3},
        ValueError,
        r"d: shape is \(2, 4, 8\); with num_splits=3 it must be \[num_splits, m, n\]",
    ),
    "no splits": (lambda: {**arguments(splits=2), "num_splits": 0}, ValueError, "num_splits: is 0; must be a whole"),
    "splits that are true": (
        lambda: {**arguments(splits=1), "num_splits": True},
        TypeError,
        "num_splits: is True; must be a whole number from 1, or None to let the call decide",
    ),
    "half a split": (lambda: {**arguments(splits=1), "num_splits": 1.5}, TypeError, "num_splits: is 1.5; must be a"),
    "sums that are negated": (
        lambda: {**arguments(), "sqr_sum": torch._neg_view(torch.empty(4))},
        ValueError,
        "sqr_sum: is a view whose memory holds its values negated",
    ),
    "m of d": (lambda: {**arguments(), "d": torch.empty(5, 8)}, ValueError, "d: m is 5, but m of a is 4"),
    "sqr_sum with gaps": (
        lambda: {**arguments(), "sqr_sum": torch.empty(8)[::2]},
        ValueError,
        r"sqr_sum: strides are \(2,\) for shape \(4,\); must be contiguous",
    ),
    "columns of d": (
        lambda: {**arguments(), "d": torch.empty(8, 4).T},
        ValueError,
        r"d: strides are \(1, 4\); this kernel needs n \(dimension 1\) contiguous",
    ),
    "slices on each other": (
        lambda: {**arguments(splits=2), "d": torch.empty(4, 8).expand(2, 4, 8)},
        ValueError,
        r"d: strides are \(0, 8, 1\) for shape \(2, 4, 8\): elements share memory",
    ),
    "d in b": (lambda: d_in_b(), ValueError, "d: its memory .* overlaps b"),
    "sums in d": (lambda: sums_in_d(), ValueError, "overlaps"),
    "no tensor": (lambda: {**arguments(), "d": None}, TypeError, "d: is a NoneType; must be a torch.Tensor"),
}


def d_in_b() -> dict[str, Any]:
    given = arguments(m=8, k=64)
    return {**given, "d": given["b"].flatten()[:64].view(8, 8)}


def sums_in_d() -> dict[str, Any]:
    given = arguments()
    return {**given, "sqr_sum": given["d"].flatten()[:4]}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_argument_value_rule_and_fix(case: str) -> None:
    make, kind, message = REFUSED[case]
    given = make()
    with gemmgen.simulate("sm90") as simulation, pytest.raises(kind, match=message):
        ops.tf32_hc_prenorm_gemm(**given)
    assert not simulation.reports


def test_an_architecture_without_kernels() -> None:
    with pytest.raises(
        UnsupportedArchitecture, match="there is no kernel for sm75; it runs on sm90 and sm100 and sm120"
    ):
        ops.spec_for("tf32_hc_prenorm_gemm", 64, 24, 640, 132, arch="sm75")


def test_it_is_registered_for_compilers() -> None:
    schema = library.tf32_hc_prenorm_gemm._schema
    assert [each.name for each in schema.arguments if each.alias_info is not None] == ["d", "sqr_sum"]
    with gemmgen.simulate("sm90"):
        for splits in (None, 1, 2):
            opcheck(library.tf32_hc_prenorm_gemm, *arguments(splits=splits).values())


def test_fake_tensors_are_judged_like_real_ones() -> None:
    given = {name: each.to("meta") if isinstance(each, torch.Tensor) else each for name, each in arguments().items()}
    ops.tf32_hc_prenorm_gemm(**given)
    odd = torch.empty(8, 72, device="meta")
    with pytest.raises(ValueError, match="a: k is 72"):
        ops.tf32_hc_prenorm_gemm(**{**given, **{"a": odd[:4].bfloat16(), "b": odd}})
