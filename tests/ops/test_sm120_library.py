"""Operators on workstation Blackwell under torch.library: fake kernels, compilers, refusals before launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opchecks import opcheck
from problems import whole_numbers
from sm100_problems import fp4, fp8, product
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmgen
from gemmgen import ops
from gemmgen.ops import library
from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.sim_target import SimTarget

MX: dict[str, Any] = {"recipe": (1, 1, 32)}
A, B, FOUR = fp8(16, 256, (1, 32), seed=1), fp8(24, 256, (1, 32), seed=2), fp4(24, 256, seed=3)
ALONG_N = ops.transpose_packed_fp4(FOUR.data).mT
"""[n/2, k]: two neighbours along n in a byte."""


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm120", sms=2):
        yield


@pytest.fixture
def nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(SimTarget, "launch", refuse)


# ------------------------------------------------------------------------------------------------ compilers


def test_fake_outputs_equal_real_ones_also_where_4_bit_numbers_lie_along_n() -> None:
    given = (*A.fp32, ALONG_N, FOUR.fp32[1])
    with FakeTensorMode() as mode:
        a, sfa, b, sfb = map(mode.from_tensor, given)
        d = ops.fp8_fp4_gemm_nt((a, sfa), (b, sfb), **MX)
    assert (d.shape, d.stride(), d.dtype) == ((16, 24), (24, 1), torch.bfloat16)
    real = ops.fp8_fp4_gemm_nt(given[:2], given[2:], **MX)
    assert real.shape == d.shape and torch.equal(real, product(A, FOUR))


def test_a_compiled_function_gives_the_same_bits() -> None:
    def turned(a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
        return ops.fp8_fp4_gemm_nn((a, sfa), (b, sfb), **MX) + 1

    compiled = torch.compile(turned, fullgraph=True, backend="aot_eager")
    found = compiled(*A.fp32, ALONG_N.mT.contiguous(), FOUR.fp32[1].mT.contiguous())
    assert torch.equal(found, product(A, FOUR) + 1)


def test_opcheck() -> None:
    a, b = fp8(2, 128, seed=1), fp4(16, 128, (1, 128), seed=2)
    along_n = ops.transpose_packed_fp4(b.data).mT
    recipe, blocked = [1, 128, 1, 128], [False, False]
    arguments = (*a.fp32, along_n, b.fp32[1], None, recipe, blocked, None, torch.bfloat16)
    opcheck(library.block_scaled_gemm, *arguments)
    x, y = (whole_numbers(rows, 64, torch.bfloat16) for rows in (3, 16))
    opcheck(library.bf16_gemm_nt, x, y, None, torch.float32)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.usefixtures("nothing_is_launched")
def test_everything_is_judged_before_anything_is_turned() -> None:
    """A call that is refused has launched no layout kernel either."""
    turned = B.data.T.contiguous().T, B.fp32[1]
    memory = torch.zeros(16, 64)
    with pytest.raises(ValueError, match=r"^d: rows of 24 elements start only 8 elements apart and overlap"):
        ops.fp8_gemm_nt(A.fp32, turned, memory.as_strided((16, 24), (8, 1)), **MX)
    odd_pitch = torch.zeros(16, 257, dtype=torch.float8_e4m3fn)[:, :256]
    with pytest.raises(ValueError, match=r"^a: row pitch is 257 elements = 257 bytes; TMA needs a multiple of 16"):
        ops.fp8_gemm_nt((odd_pitch, A.fp32[1]), turned, **MX)
    with pytest.raises(ValueError, match=r"^b: strides are \(512, 2\); this kernel needs k"):
        wide = torch.zeros(24, 512, dtype=torch.float8_e4m3fn)[:, ::2]
        ops.fp8_gemm_nt(A.fp32, (wide, B.fp32[1]), **MX)


@pytest.mark.usefixtures("nothing_is_launched")
def test_an_output_over_what_is_turned_or_packed_is_refused() -> None:
    room = torch.zeros(256, 1024, dtype=torch.uint8)
    b = room[:, :24].view(torch.float8_e4m3fn).T
    d = room.view(torch.float32)[:16, :24]
    with pytest.raises(ValueError, match=r"^d: its memory .* overlaps b "):
        ops.fp8_gemm_nt(A.fp32, (b, B.fp32[1]), d, **MX)
    sf = torch.ones(24, 64)[:, :8]
    with pytest.raises(ValueError, match=r"^d: its memory .* overlaps sfb "):
        ops.fp8_gemm_nt(A.fp32, (B.data, sf), sf.as_strided((16, 24), (64, 1)), **MX)


@pytest.mark.usefixtures("nothing_is_launched")
def test_4_bit_data_beside_8_bit_data_comes_128_at_a_time() -> None:
    a, b = fp8(16, 160, (1, 32)), fp4(24, 160)
    with pytest.raises(ValueError, match=r"^b: k is 160; beside an 8-bit factor, TMA reads 4-bit numbers 128 at"):
        ops.fp8_fp4_gemm_nt(a.fp32, b.fp32, **MX)


@pytest.mark.usefixtures("nothing_is_launched")
def test_scales_that_are_never_guessed_at() -> None:
    with pytest.raises(TypeError, match=r"^sfa: dtype is torch.uint8; scales here are powers of two"):
        ops.fp8_gemm_nt((A.data, A.codes), B.fp32, **MX)
    with pytest.raises(ValueError, match=r"^sfb: scale \(3, 1\) is 1.25, one of 1 that are no power of two"):
        bad = B.fp32[1].clone()
        bad[3, 1] = 1.25
        ops.fp8_gemm_nt(A.fp32, (B.data, bad), **MX)


def test_cpu_tensors_outside_of_simulate() -> None:
    from gemmgen.runtime import simulation

    token = simulation._chosen.set(None)
    try:
        with pytest.raises(DeviceError, match="no simulation was asked for"):
            ops.fp8_fp4_gemm_nt(A.fp32, FOUR.fp32, **MX)
    finally:
        simulation._chosen.reset(token)
