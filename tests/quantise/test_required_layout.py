"""Scales brought into what each architecture's kernels read: every form users have, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scale_tables import same

import gemmgen
from gemmgen.ops import quantise
from gemmgen.ops.quantise import transform_sf_into_required_layout as transform
from gemmgen.runtime.errors import UnsupportedArchitecture

PACKED = pytest.mark.parametrize("arch", ["sm100", "sm120"])


def bytes_of(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def forms(codes: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same UE8M0 scales in every form that is accepted."""
    bytes_ = codes.view(torch.float8_e8m0fnu)
    return {
        "fp32": quantise.decode_ue8m0(codes),
        "bytes": bytes_,
        "packed rows": quantise.pack_ue8m0_to_int(bytes_),
        "packed columns": quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(bytes_),
        "blocked": quantise.to_blocked_128x4(bytes_),
    }


@PACKED
@given(
    mn=st.integers(0, 300),
    k=st.integers(0, 700),
    gran_mn=st.sampled_from([1, 32, 128]),
    gran_k=st.sampled_from([32, 128]),
    groups=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 999),
)
def test_every_form_gives_the_same_words(
    arch: str, mn: int, k: int, gran_mn: int, gran_k: int, groups: int | None, seed: int
) -> None:
    batch = () if groups is None else (groups,)
    blocks = -(-k // gran_k)
    codes = bytes_of((*batch, -(-mn // gran_mn), blocks), seed)
    results = [transform(sf, mn, k, (gran_mn, gran_k), groups, arch=arch) for sf in forms(codes).values()]
    pitch, words = -(-mn // 4) * 4, -(-blocks // 4)
    for laid in results:
        assert laid.dtype == torch.int32 and laid.shape == (*batch, mn, words)
        if laid.numel():
            for size, stride, want in zip(
                laid.shape, laid.stride(), (pitch * words, 1, pitch)[-laid.dim() :], strict=True
            ):
                assert size == 1 or stride == want
        assert same(laid, results[0])
    rows = torch.arange(mn) // gran_mn
    unpacked = quantise.unpack_ue8m0_from_int(results[0])
    assert same(unpacked[..., :blocks], quantise.decode_ue8m0(codes)[..., rows, :])
    assert quantise.unpack_ue8m0_from_int(results[0])[..., blocks:].eq(2.0**-127).all()


@PACKED
def test_packed_words_that_lie_right_are_returned_themselves(arch: str) -> None:
    laid = forms(bytes_of((2, 5, 6)))["packed columns"]
    assert transform(laid, 5, 6 * 32, (1, 32), 2, arch=arch) is laid
    second = transform(laid[1], 5, 6 * 32, (1, 32), arch=arch)
    assert second.data_ptr() == laid[1].data_ptr()
    one_column = torch.zeros(5, dtype=torch.int32).as_strided((5, 1), (1, 1))
    laid = transform(one_column, 5, 128, (1, 128), arch=arch)
    assert laid.data_ptr() == one_column.data_ptr() and laid.stride() == (1, 8), "callers read the stride of one column"


@PACKED
def test_ue4m3_scales_of_16_are_packed_like_bytes(arch: str) -> None:
    _, sf, _ = quantise.cast_to_nvfp4(torch.randn(9, 90, generator=torch.Generator().manual_seed(1)))
    laid = transform(sf, 9, 90, (1, 16), arch=arch)
    assert laid.shape == (9, 2) and laid.stride() == (1, 12)
    assert torch.equal(laid.contiguous().view(torch.uint8)[:, :6], sf.view(torch.uint8))
    assert same(transform(quantise.to_blocked_128x4(sf), 9, 90, (1, 16), arch=arch), laid)
    assert transform(laid, 9, 90, (1, 16), arch=arch) is laid


@pytest.mark.parametrize("bad", [0xFF])
@PACKED
def test_what_lies_beyond_k_in_packed_rows_and_blocks_is_not_taken_along(arch: str, bad: int) -> None:
    """NaN bytes in the padding would turn the zeros that a copy fills in into NaN."""
    codes = bytes_of((5, 6))
    want = transform(codes.view(torch.float8_e8m0fnu), 5, 6 * 32, (1, 32), arch=arch)
    rows = torch.full((5, 8), bad, dtype=torch.uint8)
    rows[:, :6] = codes
    assert same(transform(rows.view(torch.int32), 5, 6 * 32, (1, 32), arch=arch), want)
    whole = torch.full((128, 8), bad, dtype=torch.uint8)
    whole[:5, :6] = codes
    blocked = quantise.to_blocked_128x4(whole.view(torch.float8_e8m0fnu))
    assert same(transform(blocked, 5, 6 * 32, (1, 32), arch=arch), want)


@pytest.mark.parametrize("disable", [False, True])
def test_sm90_reads_fp32(disable: bool) -> None:
    sf = torch.rand(5, 3)
    laid = transform(sf, 5, 300, (1, 128), disable_ue8m0_cast=disable, arch="sm90")
    assert same(laid, sf) and laid.stride() == (1, 8)
    assert transform(laid, 5, 300, (1, 128), arch="sm90") is laid
    blocks = torch.rand(2, 3)
    assert transform(blocks, 200, 300, (128, 128), arch="sm90") is blocks
    groups = torch.rand(4, 2, 3)
    assert transform(groups, 200, 300, (128, 128), 4, arch="sm90") is groups


# --------------------------------------------------------------------------------------------------- who decides


@pytest.mark.parametrize(
    ("recipe", "is_sfa", "rows", "columns"),
    [
        ((1, 128, 128), True, 256, 4),
        ((1, 128, 128), False, 2, 4),
        ((1, 1, 128), None, 256, 4),
        ((1, 1, 32), False, 256, 16),
        ((1, 32, 32), False, 8, 16),
        ((128, 32), None, 2, 16),
        ((1, 32), True, 256, 16),
        ((1, 32), False, 256, 16),
        ([128, 128], None, 2, 4),
        (None, True, 256, 4),
        (None, False, 2, 4),
    ],
)
def test_the_recipe_says_what_a_scale_covers(recipe: Any, is_sfa: bool | None, rows: int, columns: int) -> None:
    sf = quantise.decode_ue8m0(bytes_of((rows, columns)))
    laid = transform(sf, 256, 512, recipe, is_sfa=is_sfa, arch="sm100")
    assert same(quantise.unpack_ue8m0_from_int(laid), sf.repeat_interleave(256 // rows, 0))


def test_packed_scales_have_a_recipe_by_default_bytes_have_none() -> None:
    codes = bytes_of((4, 4)).view(torch.float8_e8m0fnu)
    packed = quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(codes)
    assert transform(packed, 4, 512, arch="sm100") is packed
    with pytest.raises(ValueError, match=r"^recipe: is missing; scales of torch.float8_e8m0fnu have no default"):
        transform(codes, 4, 512, arch="sm100")


def test_cpu_tensors_need_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMMGEN_SIMULATE", raising=False)
    sf = torch.ones(4, 1)
    with pytest.raises(ValueError, match=r"^arch: is missing and sf is on cpu, which has none; pass arch='sm90'"):
        transform(sf, 4, 128, (1, 128))
    with gemmgen.simulate("sm100"):
        assert transform(sf, 4, 128, (1, 128)).dtype == torch.int32
        assert transform(sf, 4, 128, (1, 128), arch="sm90").dtype == torch.float32
    with gemmgen.simulate("sm90"):
        assert transform(sf, 4, 128, (1, 128)).dtype == torch.float32
    with pytest.raises(UnsupportedArchitecture, match=r"^arch: 'sm80' is not an architecture"):
        transform(sf, 4, 128, (1, 128), arch="sm80")


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        ((9, 0), torch.float32),
        ((10, 0), torch.int32),
        ((10, 3), torch.int32),
        ((12, 0), torch.int32),
        ((12, 1), torch.int32),
    ],
)
def test_the_device_of_cuda_tensors_decides(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    from gemmgen.ops.quantise import required

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    family = required.family_of(torch.device("cuda", 0), None)
    assert transform(torch.ones(4, 1), 4, 128, (1, 128), arch=family).dtype == dtype


@PACKED
def test_content_decides_nothing(arch: str) -> None:
    """What is raised, and the shape; servers warm up with zeros and with whatever memory held."""
    for content in (0.0, 0.0123, -1.0, math.nan, math.inf, 1e-45):
        laid = transform(torch.full((5, 3), content), 5, 384, (1, 128), arch=arch)
        assert laid.shape == (5, 1)
    assert transform(torch.zeros(5, 4), 5, 512, (1, 128), arch=arch).eq(0).all()


@PACKED
def test_tracing_needs_no_values(arch: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for sf in (torch.ones(5, 6), torch.ones(5, 2, dtype=torch.int32)):
            laid = transform(sf, 5, 6 * 32, (1, 32), arch=arch)
            assert laid.shape == (5, 2) and laid.stride() == (1, 8)


def test_psum_layouts_reach_the_packer() -> None:
    sf = torch.ones(20, 4)
    sf[5:8] = math.nan
    laid = transform(
        sf, 20, 512, (1, 128), psum_layout=torch.tensor([5, 20], dtype=torch.int32), arch="sm100", mk_alignment=8
    )
    want = torch.full((20, 1), 0x7F7F7F7F, dtype=torch.int32)
    want[5:8] = 0
    assert torch.equal(laid, want)
    again = transform(
        torch.full_like(laid, -1),
        20,
        512,
        (1, 128),
        psum_layout=torch.tensor([5, 20], dtype=torch.int32),
        arch="sm100",
        mk_alignment=8,
    )
    assert again[5:8].eq(0).all() and again[:5].eq(-1).all()


# ------------------------------------------------------------------------------------------------------- refusals

REFUSALS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("uint8", {"sf": torch.ones(4, 1, dtype=torch.uint8)}, TypeError, r"^sf: dtype is torch.uint8; .*never guessed at"),
    ("bf16", {"sf": torch.ones(4, 1).bfloat16()}, TypeError, r"^sf: dtype is torch.bfloat16; "),
    ("too few rows", {"sf": torch.ones(3, 1)}, ValueError, r"^sf: shape is \(3, 1\).* 1 x 128 elements makes \(4, 1\)"),
    ("taller", {"sf": torch.ones(8, 1)}, ValueError, r"^sf: shape is \(8, 1\).*; pass sf\[:4, :1\]$"),
    ("groups missing", {"sf": torch.ones(2, 4, 1)}, ValueError, r"^sf: shape is \(2, 4, 1\).* makes \(4, 1\)"),
    ("groups extra", {"num_groups": 2}, ValueError, r"^sf: shape is \(4, 1\).* makes \(2, 4, 1\)"),
    (
        "gran_k",
        {"recipe": (1, 64)},
        ValueError,
        r"^recipe: gran_k is 64; scales of torch.float32 on sm100 stand for 32 or",
    ),
    ("recipe", {"recipe": (1,)}, ValueError, r"^recipe: is \(1,\); must be \(gran_mn, gran_k\) or"),
    ("zero", {"recipe": (0, 128)}, ValueError, r"^recipe: is \(0, 128\); must be"),
    ("is_sfa", {"recipe": (1, 128, 128)}, ValueError, r"^is_sfa: is missing; recipe \(1, 128, 128\) has one gran"),
    (
        "fp32 kept",
        {"disable_ue8m0_cast": True},
        ValueError,
        r"^disable_ue8m0_cast: is True, but the tensor cores of sm100",
    ),
    (
        "sm90 bytes",
        {"arch": "sm90", "sf": torch.ones(4, 1, dtype=torch.int32)},
        TypeError,
        r"^sf: dtype is torch.int32; sm90 multiplies with",
    ),
    (
        "sm90 gran",
        {"arch": "sm90", "recipe": (1, 32)},
        ValueError,
        r"^recipe: \(1, 32\) is not supported on sm90; use one of \(1, 128\), \(128, 128\)$",
    ),
    (
        "blocked",
        {"sf": torch.ones(256, dtype=torch.uint8).view(torch.float8_e8m0fnu)},
        ValueError,
        r"^blocked: has 256 scales; 4 x 1 of them",
    ),
]


@pytest.mark.parametrize(
    ("change", "error", "message"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_what_is_refused_says_why_and_what_to_do(change: dict[str, Any], error: type[Exception], message: str) -> None:
    call: dict[str, Any] = {"sf": torch.ones(4, 1), "mn": 4, "k": 128, "recipe": (1, 128), "arch": "sm100", **change}
    with pytest.raises(error, match=message):
        transform(**call)
