"""Sizes of groups that the host knows: every kind that holds them is taken, and what fits no group has a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gemmgen
from gemmgen import ops
from gemmgen.runtime.errors import DeviceError

KINDS: dict[str, Any] = {
    "list": [128, 256],
    "tuple": (128, 256),
    "array": np.array([128, 256]),
    "numbers of an array": list(np.array([128, 256])),
    "tensor on the host": torch.tensor([128, 256]),
    "nobody knows": None,
    "nobody knows, an array": np.array([], dtype=np.int64),
}
LAYOUT = torch.tensor([128, 256], dtype=torch.int32)


def e4m3(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).float().to(torch.float8_e4m3fn)


def powers(*shape: int) -> torch.Tensor:
    return 2.0 ** torch.randint(-3, 4, shape)


def of(operator: str) -> tuple[str, dict[str, Any]]:
    """An architecture that has the operator, and arguments of two groups with 128 and 256 of k."""
    d = torch.zeros(2, 64, 32)
    if operator == "bf16_gemm_tn":
        a, b = torch.randn(384, 64).bfloat16(), torch.randn(384, 32).bfloat16()
        return "sm90", {"a": a, "b": b, "d": d, "ks_cpu": [128, 256], "grouped_layout": LAYOUT}
    flat = operator == "fp8_gemm_nt"
    a, b = ((e4m3(384 * rows) if flat else e4m3(384, rows), powers(3, rows)) for rows in (64, 32))
    return "sm90" if flat else "sm100", {"a": a, "b": b, "d": d, "ks_cpu": [128, 256], "grouped_layout": LAYOUT}


def called(operator: str, **changes: Any) -> torch.Tensor:
    arch, arguments = of(operator)
    with gemmgen.simulate(arch):
        result: torch.Tensor = getattr(ops, f"k_grouped_{operator}_contiguous")(**{**arguments, **changes})
    return result


OPERATORS = pytest.mark.parametrize("operator", ["bf16_gemm_tn", "fp8_gemm_nt", "fp8_gemm_tn"])


@OPERATORS
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_every_kind_are_taken(operator: str, kind: str) -> None:
    torch.manual_seed(0)
    wanted = called(operator)
    torch.manual_seed(0)
    assert torch.equal(called(operator, ks_cpu=KINDS[kind]), wanted) and wanted.any()


@OPERATORS
@pytest.mark.parametrize("sizes", [32, "ab", [1.5, 2.5], np.array(384)], ids=repr)
def test_what_holds_no_sizes_is_refused(operator: str, sizes: Any) -> None:
    with pytest.raises(TypeError, match=r"^ks_cpu: is .*; must be a whole number for each group, such as"):
        called(operator, ks_cpu=sizes)


@OPERATORS
def test_sizes_elsewhere_are_refused(operator: str) -> None:
    with pytest.raises(TypeError, match=r"^ks_cpu: is a Tensor on meta; sizes are known on the host, so that nothing"):
        called(operator, ks_cpu=torch.empty(2, dtype=torch.int32, device="meta"))


@OPERATORS
@pytest.mark.parametrize("name", ["a", "b", "sfa", "sfb", "d"])
def test_numbers_without_dimensions_are_refused(operator: str, name: str) -> None:
    given, none = of(operator)[1], torch.tensor(1.0)
    if operator == "bf16_gemm_tn":
        changes = {name.removeprefix("sf"): none}
    elif name == "d":
        changes = {"d": none}
    else:
        data, sf = given[name[-1]]
        changes = {name[-1]: (data, none) if name.startswith("sf") else (none.to(data.dtype), sf)}
    said = name.removeprefix("sf") if operator == "bf16_gemm_tn" else name
    with pytest.raises(ValueError, match=rf"^{said}: has 0 dimensions; must be "):
        called(operator, **changes)


@pytest.mark.parametrize("operator", ["fp8_gemm_nt", "fp8_gemm_tn"])
def test_a_recipe_that_is_none_is_the_usual_one(operator: str) -> None:
    torch.manual_seed(0)
    wanted = called(operator)
    torch.manual_seed(0)
    assert torch.equal(called(operator, recipe=None), wanted)


# ------------------------------------------------------------------------------------------------ packed scales


def packed(rows: int, ks: Any, gran: int = 128, layout: torch.Tensor = LAYOUT, psum: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    return ops.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(powers(rows, 6), layout, ks, gran, 128, psum)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("nobody")])
def test_scales_are_packed_by_sizes_of_every_kind(kind: str) -> None:
    assert torch.equal(packed(3, KINDS[kind]), packed(3, [128, 256])) and packed(3, KINDS[kind]).shape == (2, 6)


@pytest.mark.parametrize(
    ("rows", "ks", "says"),
    [
        (3, [128], r"^ks_cpu: has 1 sizes, but grouped_layout has 2 groups; pass one for each group, or None"),
        (3, torch.tensor([128]), r"^ks_cpu: has 1 sizes, but grouped_layout has 2 groups"),
        (2, [128, 256], r"^sf: has 2 rows; must have 3, one for 128 of k of every group, rounded up for each; pass"),
        (4, [128, 256], r"^sf: has 4 rows; must have 3, "),
        (3, [128, -256], r"^ks_cpu: group 1 has -256 of k; must be 0 or more"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_the_scales_are_refused(rows: int, ks: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        packed(rows, ks)


def test_sizes_that_are_rounded_up_to_the_alignment_fit_fewer_scales() -> None:
    """Groups of 32 and 160 have 6 scales; of the 128 and 256 that the host may know there would be 12."""
    ends = torch.tensor([32, 288], dtype=torch.int32)
    assert packed(6, [128, 256], 32, ends, True).shape == (3, 6)
    for rows, ks in ((5, [32, 160]), (7, [32, 160]), (5, [128, 256]), (13, [128, 256])):
        with pytest.raises(ValueError, match=rf"^sf: has {rows} rows; must have 6"):
            packed(rows, ks, 32, ends, True)


def test_a_compiled_packer_takes_other_sizes() -> None:
    def pack(sf: torch.Tensor, layout: torch.Tensor, ks: list[int]) -> torch.Tensor:
        return ops.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, layout, ks)

    torch._dynamo.reset()
    compiled = torch.compile(pack, fullgraph=True, backend="aot_eager")
    for ks in ([128, 256], [640, 10], [256, 512]):
        sf, layout = powers(sum(-(-k // 128) for k in ks), 6), torch.tensor(ks, dtype=torch.int32)
        assert torch.equal(compiled(sf, layout, ks), pack(sf, layout, ks))


WRONG = {
    "more than there is": ([64, 64], False, "groups end at 128, but a has 96 of k"),
    "less than nothing": ([64, -64], False, "group 1 has -64 of k; groups have 0 or more"),
    "an end before its start": ([64, 16], True, "group 1 has -112 of k"),
}


@pytest.mark.parametrize("what", WRONG)
def test_numbers_of_a_layout_are_looked_at_if_that_is_asked_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, psum, sentence = WRONG[what]
    a, b, d = torch.randn(96, 16).bfloat16(), torch.randn(96, 24).bfloat16(), torch.zeros(2, 16, 24)
    layout = torch.tensor(numbers, dtype=torch.int32)
    monkeypatch.setenv("GEMMGEN_CHECK_GROUPS", "1")
    with gemmgen.simulate("sm90", sms=2), pytest.raises(ValueError, match=sentence):
        ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, layout, use_psum_layout=psum)
    assert not d.any()


LAYOUTS = {
    "type": (torch.tensor([48, 48]), TypeError, "grouped_layout: dtype is torch.int64; must be torch.int32"),
    "dimensions": (torch.zeros(1, 2).int(), ValueError, "grouped_layout: has 2 dimensions"),
    "length": (torch.zeros(3).int(), ValueError, "grouped_layout: has 3 numbers, but d has 2 groups"),
    "order": (torch.zeros(4).int()[::2], ValueError, "grouped_layout: stride is 2; .* pass grouped_layout.contiguous"),
    "place": (torch.zeros(2, device="meta").int(), DeviceError, "grouped_layout: is on meta, but d is on cpu"),
}


@pytest.mark.parametrize("what", LAYOUTS)
def test_a_layout_is_called_as_callers_know_it(what: str) -> None:
    layout, error, sentence = LAYOUTS[what]
    a, b, d = torch.randn(96, 16).bfloat16(), torch.randn(96, 24).bfloat16(), torch.zeros(2, 16, 24)
    with gemmgen.simulate("sm90", sms=2), pytest.raises(error, match=sentence):
        ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, layout)


@OPERATORS
def test_an_output_over_the_layout_is_refused(operator: str) -> None:
    d = torch.zeros(2, 64, 32)
    layout = d.view(torch.int32).flatten()[:2].copy_(LAYOUT)
    with pytest.raises(ValueError, match=r"^d: its memory .* overlaps grouped_layout .*; pass grouped_layout.clone"):
        called(operator, d=d, grouped_layout=layout)


@OPERATORS
def test_a_flag_is_a_bool(operator: str) -> None:
    with pytest.raises(TypeError, match=r"^use_psum_layout: is 'no'; must be a bool"):
        called(operator, use_psum_layout="no")


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
@pytest.mark.parametrize("form", ["fp32", "bytes", "words"])
@pytest.mark.parametrize("name", ["sfa", "sfb"])
def test_an_output_over_scales_is_refused(name: str, form: str, arch: str) -> None:
    """Also where kernels read a copy of them: they would be overwritten. Words here start at no 16 bytes, so move."""
    given = of("fp8_gemm_tn")[1]
    columns = 64 if name == "sfa" else 32
    dtype, rows = {"fp32": (torch.float32, 3), "bytes": (torch.float8_e8m0fnu, 3), "words": (torch.int32, 2)}[form]
    scales = given["d"].view(dtype).flatten()[1:].as_strided((rows, columns), (columns + 1, 1))
    given[name[-1]] = given[name[-1]][0], scales
    message = rf"^d: its memory .* overlaps {name} .*; an output may not share memory with an input; pass {name}.clone"
    with gemmgen.simulate(arch), pytest.raises(ValueError, match=message):
        ops.k_grouped_fp8_gemm_tn_contiguous(**given)
