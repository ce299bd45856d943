"""Bad calls of row groups: one refusal each, before any launch; numbers in layouts are looked at only when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from grouped_problems import Problem, bf16_problem, counts_of, ends, fp8_problem, ids

import gemmgen
from gemmgen import ops
from gemmgen.ir import Cast, DType, Epilogue, Operand, Store
from gemmgen.runtime.errors import DeviceError, UnsupportedArchitecture
from gemmgen.runtime.sim_target import SimTarget

LAUNCH = SimTarget.launch
ENDS = bf16_problem(ends((3, 5)))
MASKED = fp8_problem(counts_of((3, 5), 8))


@pytest.fixture(autouse=True)
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gemmgen.simulate("sm90", sms=2), monkeypatch.context() as patch:
        patch.setattr(SimTarget, "launch", refuse_launch)
        yield
    ops.set_mk_alignment_for_contiguous_layout(128)


def refuse_launch(*_: object) -> None:
    raise AssertionError("a kernel was launched")


def contiguous(problem: Problem = ENDS, **changes: Any) -> torch.Tensor:
    given: dict[str, Any] = {"a": problem.a, "b": problem.b, "d": None, "grouped_layout": problem.layout.given}
    return ops.m_grouped_bf16_gemm_nt_contiguous(**{"offsets": True, **given, **changes})


def masked(**changes: Any) -> torch.Tensor:
    given = {"a": MASKED.a, "b": MASKED.b, "d": None, "masked_m": MASKED.layout.given}
    return ops.m_grouped_fp8_gemm_nt_masked(**{**given, **changes})


LAYOUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "a list": ([3, 8], TypeError, r"is a list; must be a torch.Tensor of torch.int32 on cpu$"),
    "none": (None, TypeError, r"is a NoneType; must be a torch.Tensor of torch.int32"),
    "int64": (
        torch.tensor([3, 8]),
        TypeError,
        r"dtype is torch.int64; must be torch.int32; pass \w+.to\(torch.int32\)$",
    ),
    "too long": (torch.zeros(3).int(), ValueError, r"shape is \(3,\); must be \(2,\), .* for every group of b$"),
    "a matrix": (torch.zeros(2, 1).int(), ValueError, r"shape is \(2, 1\); must be \(2,\), "),
    "strided": (torch.zeros(4).int()[::2], ValueError, r"stride is 2; kernels read neighbours, so pass \w+.contiguous"),
    "elsewhere": (
        torch.zeros(2, device="meta").int(),
        DeviceError,
        r"is on meta, but a is on cpu; kernels read it there, so pass \w+.to\('cpu'\)$",
    ),
}


@pytest.mark.parametrize("fault", LAYOUTS)
def test_layouts_of_another_kind(fault: str) -> None:
    """P04."""
    layout, error, message = LAYOUTS[fault]
    with pytest.raises(error, match=rf"^grouped_layout: {message}"):
        contiguous(grouped_layout=layout)
    with pytest.raises(error, match=rf"^masked_m: {message}"):
        masked(masked_m=layout)


def test_a_group_for_every_row_needs_as_many() -> None:
    message = r"^grouped_layout: shape is \(2,\); must be \(8,\), a group or -1 for every row of a$"
    with pytest.raises(ValueError, match=message):
        contiguous(offsets=False)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"offsets": "no"}, TypeError, r"^offsets: is 'no'; must be a bool, so pass offsets=True or offsets=False$"),
        ({"use_psum_layout": 1, "offsets": False}, TypeError, r"^use_psum_layout: is 1; must be a bool"),
        ({"ensure_zero_padding": None}, TypeError, r"^ensure_zero_padding: is None; must be a bool"),
        ({"use_psum_layout": True}, ValueError, r"^offsets: is True and so is use_psum_layout; .* so pass either$"),
        (
            {"expected_m_for_psum_layout": torch.tensor(4)},
            TypeError,
            r"^expected_m_for_psum_layout: is a Tensor; a hint",
        ),
        ({"compiled_dims": "g"}, ValueError, r"^compiled_dims: 'g' names more than m, n and k"),
        ({"a": ENDS.a[None]}, ValueError, r"^a: shape \(1, 8, 160\) has 3 dimensions; must have 2: \(m, k\)$"),
        ({"b": ENDS.b[0]}, ValueError, r"^b: shape \(72, 160\) has 2 dimensions; must have 3: \(g, n, k\)$"),
        ({"b": ENDS.b[:, :, :80]}, ValueError, r"^b: k is 80, but k of a is 160; they must be equal$"),
        (
            {"d": torch.zeros(8, 72).bfloat16().to_sparse()},
            TypeError,
            r"^d: layout is torch.sparse_coo; must be strided",
        ),
        ({"d": torch.zeros(9, 72).bfloat16()}, ValueError, r"^d: m is 9, but m of a is 8; they must be equal$"),
        ({"d": torch.zeros(8, 72).half()}, TypeError, r"^d: dtype is torch.float16; must be one of"),
        ({"d": ENDS.a[:, :72]}, ValueError, r"^d: its memory .* overlaps a "),
        ({"bias": torch.zeros(72)}, ValueError, r"^bias: shape \(72\) has 1 dimensions; must have 2: \(g, n\)$"),
        ({"activation": "sin"}, ValueError, r"^activation: 'sin' is unknown; use one of relu"),
        ({"b": torch.nn.Parameter(ENDS.b)}, RuntimeError, r"^b: requires_grad is True, but this operator has no"),
    ],
)
def test_contiguous_calls_that_do_not_fit(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        contiguous(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": MASKED.a[0]}, TypeError, r"^a: is a Tensor; must be a pair \(data, scales\)"),
        (
            {"a": (MASKED.a[0], MASKED.a[1][0])},
            ValueError,
            r"^sfa: shape \(8, 2\) has 2 dimensions; must have 3: \(g, m",
        ),
        ({"a": (MASKED.a[0][:1], MASKED.a[1][:1])}, ValueError, r"^b: g is 2, but g of a is 1; they must be equal$"),
        ({"b": (MASKED.b[0], MASKED.b[1][:1])}, ValueError, r"^sfb: g is 1, but g of a is 2; they must be equal$"),
        ({"recipe": (1, 1, 128)}, ValueError, r"^sfb: shape is .*the recipe \(1, 1, 128\) says one scale per 1 x 128"),
        (
            {"a": (MASKED.a[0].bfloat16(), MASKED.a[1])},
            TypeError,
            r"^a: dtype is torch.bfloat16; m_grouped_fp8_gemm_nt",
        ),
        ({"d": torch.zeros(16, 72).bfloat16()}, ValueError, r"^d: shape \(16, 72\) has 2 dimensions; must have 3"),
    ],
)
def test_masked_calls_that_do_not_fit(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        masked(**changes)


HINTS: list[tuple[Any, type[Exception], str]] = [
    ("4", TypeError, r"is a str; must be a number of rows, such as 64, or left out$"),
    ([4], TypeError, r"is a list; must be a number of rows"),
    (float("nan"), ValueError, r"is nan; must be a number of rows, such as 64, or left out$"),
]


@pytest.mark.parametrize(("hint", "error", "message"), HINTS)
def test_hints_that_are_no_numbers(hint: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^expected_m_for_psum_layout: {message}"):
        contiguous(expected_m_for_psum_layout=hint)
    with pytest.raises(error, match=rf"^expected_m: {message}"):
        masked(expected_m=hint)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("counts", [1, 2])
def test_groups_of_b_that_are_not_those_of_a(arch: str, counts: int) -> None:
    """The layout may fit either, so it is not what is blamed."""
    b = MASKED.b[0][:1], MASKED.b[1][:1]
    with (
        gemmgen.simulate(arch, sms=2),
        pytest.raises(ValueError, match=r"^b: g is 1, but g of a is 2; they must be equal$"),
    ):
        masked(b=b, masked_m=MASKED.layout.given[:counts])


def test_groups_that_the_copy_engine_cannot_step_to() -> None:
    room = torch.zeros(2 * 8 * 160 + 8).bfloat16()
    apart = room.as_strided((2, 8, 160), (8 * 160 + 4, 160, 1))
    message = r"^a: groups are 1284 elements = 2568 bytes apart; TMA needs a multiple of 16 bytes; cut the tensor from"
    with pytest.raises(ValueError, match=message):
        ops.m_grouped_bf16_gemm_nt_masked(apart, ENDS.b, None, torch.zeros(2).int())


@pytest.mark.parametrize("arch", ["sm90", "sm120"])
def test_an_output_over_the_layout(arch: str) -> None:
    """It is called as callers know it."""
    d = torch.zeros(2, 8, 72)
    layout = d.view(torch.int32).flatten()[:2]
    with gemmgen.simulate(arch, sms=2):
        for run in (masked, masked_bf16):
            with pytest.raises(ValueError, match=r"^d: its memory .* overlaps masked_m .*; pass masked_m.clone\(\)$"):
                run(d=d, masked_m=layout)
        with pytest.raises(ValueError, match=r"^d: its memory .* overlaps grouped_layout .*; pass grouped_layout.cl"):
            contiguous(d=d[0], grouped_layout=layout)


def masked_bf16(**changes: Any) -> torch.Tensor:
    return ops.m_grouped_bf16_gemm_nt_masked(MASKED.a[0].bfloat16(), MASKED.b[0].bfloat16(), **changes)


def test_outputs_of_groups_that_overlap() -> None:
    own = bf16_problem(counts_of((3, 5), 8))
    d = torch.zeros(8, 72).bfloat16().expand(2, 8, 72)
    message = r"^d: groups of 576 elements start only 0 elements apart and overlap; pass one with a group stride of"
    with pytest.raises(ValueError, match=message):
        ops.m_grouped_bf16_gemm_nt_masked(own.a, own.b, d, own.layout.given)
    between = torch.zeros(8, 2, 72).bfloat16().transpose(0, 1)  # rows of both in turn
    with pytest.raises(AssertionError, match="a kernel was launched"):
        ops.m_grouped_bf16_gemm_nt_masked(own.a, own.b, between, own.layout.given)


def test_an_alignment_that_no_tile_divides() -> None:
    """Nor does a launch look where they begin: it counts 4095 rows at most from one place to the next."""
    ops.set_mk_alignment_for_contiguous_layout(4112)
    problem = bf16_problem(ids((3, 5), 4112), n=71)  # rows of the output are no whole 16 bytes
    message = (
        r"^grouped_layout: has a group for every row, and groups start at multiples of 4112 rows; tiles here have 64 "
    )
    with pytest.raises(ValueError, match=message):
        contiguous(problem, offsets=False)


def test_an_epilogue_that_no_tile_of_that_alignment_has() -> None:
    ops.set_mk_alignment_for_contiguous_layout(4112)
    problem = fp8_problem(ids((3, 5), 4112), n=128)
    message = (
        r"fits no tile of this operator: .* do not swap; groups start at multiples that only swapped tiles divide, so "
        r"set_mk_alignment_for_contiguous_layout\(128\) and pad"
    )
    with pytest.raises(ValueError, match=message):
        ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(problem.a, problem.b, None, None, problem.layout.given)


def test_operands_of_an_epilogue_that_the_operator_takes_itself() -> None:
    operands = tuple(
        Operand(name=name, dtype=DType.BF16, box=box) for name, box in (("layout", ("n",)), ("d", ("m", "n")))
    )
    steps = (gemmgen.Bias(vector="layout"), Cast(to=DType.BF16), Store(to="d"))
    with pytest.raises(
        ValueError, match=r"^epilogue: 'clash' has an operand 'layout', which m_grouped_\w+ takes itself"
    ):
        gemmgen.fuse("m_grouped_bf16_gemm_nt_masked", Epilogue(name="clash", operands=operands, steps=steps))


def test_4_bit_numbers_need_other_tensor_cores() -> None:
    a, b = (torch.zeros(*shape, 80).to(torch.int8) for shape in ((8,), (2, 72)))
    pairs = (a, torch.ones(8, 5)), (b, torch.ones(2, 72, 5))
    with pytest.raises(
        UnsupportedArchitecture, match=r"^a and b: 4-bit numbers are multiplied on sm100 and sm120 only"
    ):
        ops.m_grouped_fp8_fp4_gemm_nt_contiguous(
            *pairs, None, ENDS.layout.given, recipe_a=(1, 32), recipe_b=(1, 32), offsets=True
        )


# ------------------------------------------------------------------------------------------------ numbers


CONTENT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "two groups in a tile": (
        ids((100, 28), 1),
        {},
        r"^grouped_layout: row 100 is of group 1 and row 0 of 0; groups start at multiples of the alignment of 128",
    ),
    "rows behind padding": (
        ids((3, 5), 4),
        {},
        r"^grouped_layout: row 4 is of group 1 and row 0 of 0; groups start at multiples",
    ),
    "ends that go back": (
        ends((5, -2), tail=2),
        {"offsets": True},
        r"^grouped_layout: group 1 starts at row 5 and ends at 3; a has 5 rows, and a group ends where it starts or",
    ),
    "ends past the matrix": (
        ends((2, 9), tail=-2),
        {"offsets": True},
        r"^grouped_layout: group 1 starts at row 2 and ends at 11; a has 9 rows",
    ),
    "ends inside the alignment": (
        ends((200, 3)),
        {"use_psum_layout": True},
        r"^grouped_layout: group 1 starts at row 256, a multiple of 128 and ends at 203; a has 203 rows",
    ),
}


@pytest.mark.parametrize("fault", CONTENT)
def test_numbers_of_a_layout_are_looked_at_when_asked(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """P03; without being asked nothing looks, and the call goes on to its launch."""
    layout, named, message = CONTENT[fault]
    m = layout.m
    a, b = torch.zeros(m, 64).bfloat16(), torch.zeros(2, 16, 64).bfloat16()
    named = {"offsets": False, **named}
    with pytest.raises(AssertionError, match="a kernel was launched"):
        contiguous(a=a, b=b, grouped_layout=layout.given, **named)
    monkeypatch.setenv("GEMMGEN_CHECK_GROUPS", "1")
    with pytest.raises(ValueError, match=message):
        contiguous(a=a, b=b, grouped_layout=layout.given, **named)


def test_ids_and_counts_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CHECK_GROUPS", "1")
    message = r"^grouped_layout: row 0 is of group 2; b has 2, so pass 0 to 1, or -1 for a row of none$"
    with pytest.raises(ValueError, match=message):
        contiguous(grouped_layout=torch.full((8,), 2).int(), offsets=False)
    with pytest.raises(ValueError, match=r"^masked_m: group 1 has 9 rows; a has room for 8; pass 0 to 8$"):
        masked(masked_m=torch.tensor([8, 9]).int())


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        (ids((5, 0, 9), 128, tail=1), {"offsets": False}),
        (ends((0, 130, 0, 1), 128), {"offsets": False, "use_psum_layout": True}),
        (ends((3, 0, 1)), {}),
    ],
)
def test_layouts_that_keep_their_rules_pass(
    monkeypatch: pytest.MonkeyPatch, layout: Any, named: dict[str, Any]
) -> None:
    monkeypatch.setenv("GEMMGEN_CHECK_GROUPS", "1")
    a, b = torch.zeros(layout.m, 64).bfloat16(), torch.zeros(len(layout.spans), 16, 64).bfloat16()
    with pytest.raises(AssertionError, match="a kernel was launched"):
        contiguous(a=a, b=b, grouped_layout=layout.given, **named)


def test_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"^grouped_layout: dtype is torch.int64"):
        contiguous(grouped_layout=torch.tensor([3, 8]))
    with monkeypatch.context() as patch:  # undone before the fixture's own, which it covers
        patch.setattr(SimTarget, "launch", LAUNCH)
        assert torch.equal(contiguous(), ENDS.product.bfloat16())
