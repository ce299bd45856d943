"""Layout kernels on the simulator: bytes, pairs of 4-bit numbers and scales against torch, ragged and badly aligned."""

from __future__ import annotations

import pytest
import torch
from opchecks import opcheck

import gemmgen
from gemmgen import catalog, ops
from gemmgen.commands.relayout import expected_memory, memory_of, random_layout_operands
from gemmgen.ir import Arch, DType, LayoutSpec
from gemmgen.ops import relayout
from gemmgen.ops.quantise import pack_fp4, unpack_fp4

SHAPES = ((2, 2), (16, 32), (30, 258), (258, 30), (300, 96))
SPECS = (
    *(catalog.to_k_major(Arch.SM100, dtype) for dtype in (DType.E2M1, DType.E4M3, DType.BF16)),
    catalog.to_k_major(Arch.SM100, DType.E2M1).replace(name="two_warps", warps=2),
    catalog.to_m_major(Arch.SM100, DType.UE8M0X4),
    catalog.pack_bytes(Arch.SM100),
    *(catalog.pack_ue8m0(Arch.SM100, rows) for rows in (1, 32, 128)),
)


@pytest.mark.parametrize("m, k", SHAPES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_byte_of_the_destination_and_none_beside(spec: LayoutSpec, m: int, k: int) -> None:
    """The destination lies in memory full of 0xFF, which must still be there between and behind its lines."""
    operands = random_layout_operands(spec, {"m": m, "k": k}, seed=m + k)
    expected = expected_memory(spec, operands)
    with gemmgen.simulate("sm100"):
        gemmgen.op(spec)(**operands)
    assert torch.equal(memory_of(operands["destination"]), expected)


def codes(m: int, k: int) -> torch.Tensor:
    return torch.randint(0, 16, (m, k), dtype=torch.uint8, generator=torch.Generator().manual_seed(m * k))


def test_packed_4_bit_numbers_are_paired_anew() -> None:
    """A transpose of packed bytes would keep neighbours along m together: every pair would be the wrong one."""
    numbers = codes(34, 66)
    along_m = pack_fp4(numbers.T.contiguous()).T  # [m/2, k]
    with gemmgen.simulate("sm100"):
        found = relayout.to_k_major(along_m, DType.E2M1, Arch.SM100)
    assert found.shape == (34, 33) and torch.equal(unpack_fp4(found), numbers)
    assert torch.equal(found, ops.transpose_packed_fp4(along_m.mT))


@pytest.mark.parametrize("shift", [0, 1, 3, 8])
@pytest.mark.parametrize("extra", [0, 1, 6, 16])
def test_any_address_and_pitch_of_the_source(shift: int, extra: int) -> None:
    m, k = 70, 37
    room = torch.randint(0, 256, (k * (m + extra) + shift,), dtype=torch.uint8)
    source = room[shift:].view(torch.float8_e4m3fn).as_strided((m, k), (1, m + extra))
    with gemmgen.simulate("sm100"):
        found = relayout.to_k_major(source, DType.E4M3, Arch.SM100)
    assert torch.equal(found.view(torch.uint8), source.contiguous().view(torch.uint8))
    assert found.stride(0) % relayout.PITCH == 0


@pytest.mark.parametrize("shift, extra", [(0, 0), (2, 16), (16, 5)])
def test_any_address_and_pitch_of_the_destination(shift: int, extra: int) -> None:
    m, k = 33, 50
    source = torch.randint(0, 256, (k, m), dtype=torch.uint8).T.view(torch.float8_e4m3fn)
    room = torch.full((m * (k + extra) + shift + 7,), 0xFF, dtype=torch.uint8)
    d = room[shift:].view(torch.float8_e4m3fn).as_strided((m, k), (k + extra, 1))
    with gemmgen.simulate("sm100"):
        gemmgen.op(catalog.to_k_major(Arch.SM100, DType.E4M3))(source=source, destination=d)
    assert torch.equal(d.view(torch.uint8), source.view(torch.uint8))
    written = torch.zeros_like(room, dtype=torch.bool)
    written[shift:].as_strided((m, k), (k + extra, 1)).fill_(True)
    assert bool((room[~written] == 0xFF).all())


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("mn, k", [(1, 1), (5, 3), (130, 4), (257, 57)])
def test_packed_scales_equal_those_of_the_reference(rows: int, mn: int, k: int) -> None:
    """Words, strides and the zeros that pad; scales 2**-127 as 0.0, the largest, and NaN among them."""
    exponents = torch.randint(0, 256, (-(-mn // rows), k), dtype=torch.int32)
    sf = (exponents << 23).view(torch.float32)
    expected = ops.transform_sf_into_required_layout(sf, mn, 128 * k, (rows, 128), arch="sm100")
    with gemmgen.simulate("sm100"):
        found = relayout.pack_ue8m0(sf, mn, rows, Arch.SM100)
    assert found.stride() == expected.stride() and torch.equal(found, expected)
    pads = memory_of(found).view(torch.int32).view(found.shape[1], -1)[:, mn:]
    assert bool((pads == 0).all())


def test_scales_that_are_no_powers_of_two_become_nan_as_in_the_reference() -> None:
    sf = 2.0 ** torch.randint(-126, 127, (40, 9))
    sf[1], sf[2, 3], sf[3, 4], sf[5, 6], sf[7, 8] = torch.rand(9), -2.0, 2.0**-127, 2.0**-128, torch.inf
    expected = ops.transform_sf_into_required_layout(sf, 40, 9 * 128, (1, 128), arch="sm100")
    with gemmgen.simulate("sm100"):
        assert torch.equal(relayout.pack_ue8m0(sf, 40, 1, Arch.SM100), expected)


def test_words_become_contiguous_along_m() -> None:
    words = torch.randint(-(2**31), 2**31, (37, 11), dtype=torch.int64).to(torch.int32)
    with gemmgen.simulate("sm100"):
        found = relayout.to_m_major(words, Arch.SM100)
    assert found.stride() == (1, 40) and torch.equal(found, words)


@pytest.mark.parametrize("m, k", [(0, 16), (16, 0)])
def test_an_empty_matrix_launches_nothing(m: int, k: int) -> None:
    with gemmgen.simulate("sm100") as simulation:
        found = relayout.to_k_major(torch.empty((k, m), dtype=torch.float8_e4m3fn).T, DType.E4M3, Arch.SM100)
    assert found.shape == (m, k) and not simulation.reports


@pytest.mark.parametrize("schedule", ["late", "random", "starve"])
def test_other_timings_change_nothing(schedule: str) -> None:
    spec = catalog.to_k_major(Arch.SM100, DType.E2M1)
    operands = random_layout_operands(spec, {"m": 258, "k": 30}, seed=5)
    expected = expected_memory(spec, operands)
    with gemmgen.simulate("sm100", schedule=schedule) as simulation:
        gemmgen.op(spec)(**operands)
    assert torch.equal(memory_of(operands["destination"]), expected)
    assert not simulation.reports[0].warnings


# ------------------------------------------------------------------------------------------------ refusals


def test_a_source_that_lies_otherwise_is_refused() -> None:
    spec = catalog.to_k_major(Arch.SM100, DType.E4M3)
    with gemmgen.simulate("sm100"), pytest.raises(ValueError, match=r"source: strides .* needs m .* contiguous"):
        gemmgen.op(spec)(source=torch.empty(32, 32, dtype=torch.float8_e4m3fn))


def test_an_odd_number_of_4_bit_numbers_along_k_fits_no_destination() -> None:
    spec = catalog.to_k_major(Arch.SM100, DType.E2M1)
    source, d = torch.empty(7, 4, dtype=torch.int8).T, torch.empty(8, 3, dtype=torch.int8)
    with (
        gemmgen.simulate("sm100"),
        pytest.raises(
            ValueError,
            match="source: k is 7; elements of destination lie 2 a byte, so k must be a multiple of 2; pad it to 8",
        ),
    ):
        gemmgen.op(spec)(source=source, destination=d)


def test_pads_without_room_are_refused() -> None:
    spec = catalog.pack_ue8m0(Arch.SM100)
    d = torch.empty(2, 5, dtype=torch.int32).T
    with gemmgen.simulate("sm100"), pytest.raises(ValueError, match="filled up with zeros to 8"):
        gemmgen.op(spec)(source=torch.ones(5, 8), destination=d)


def test_repeated_rows_need_a_destination() -> None:
    spec = catalog.pack_ue8m0(Arch.SM100, 128)
    with gemmgen.simulate("sm100"), pytest.raises(TypeError, match="destination: is missing"):
        gemmgen.op(spec)(source=torch.ones(2, 8))


def test_a_destination_that_overlaps_its_source_is_refused() -> None:
    spec = catalog.to_k_major(Arch.SM100, DType.E4M3)
    room = torch.zeros(32, 32, dtype=torch.float8_e4m3fn)
    with gemmgen.simulate("sm100"), pytest.raises(ValueError, match=r"destination: its memory .* overlaps source"):
        gemmgen.op(spec)(source=room.T, destination=room)


def test_compilers_see_a_layout_kernel() -> None:
    op = gemmgen.op(catalog.to_k_major(Arch.SM100, DType.E4M3))
    source = torch.randint(0, 0x7F, (48, 32), dtype=torch.uint8).T.view(torch.float8_e4m3fn)
    with gemmgen.simulate("sm100"):
        found = torch.compile(lambda x: op(source=x), fullgraph=True, backend="eager")(source)
        assert torch.equal(found.view(torch.uint8), source.contiguous().view(torch.uint8))
        opcheck(op._returning, source)
        opcheck(op._writing, source, torch.empty_like(found))
