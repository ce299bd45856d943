"""P29: what every registered operator says of its arguments, and that those of FP8 groups of k keep their word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opchecks import opcheck
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmgen
from gemmgen.ops import library

INPUTS = {"a", "b", "sfa", "sfb", "layout"}
"""Of products; an epilogue names its operands as it likes."""


def schemas() -> dict[str, Any]:
    """Those of the library, and of what other tests have made by now."""
    names = [name for name in dir(getattr(torch.ops, library.NAMESPACE)) if not name.startswith("_") and name != "name"]
    return {name: getattr(getattr(torch.ops, library.NAMESPACE), name).default._schema for name in names}


def test_operators_write_outputs_or_return_new_ones() -> None:
    found = schemas()
    assert found.keys() >= set(library.__all__)
    for name, schema in found.items():
        written = {each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write}
        assert bool(written) != bool(schema.returns), name
        assert not written & INPUTS, name
        assert all(each.alias_info is None for each in schema.returns), name
    for name in library.__all__:
        outputs = {each.name for each in found[name].arguments} & {"d", "sqr_sum"}
        assert {each.name for each in found[name].arguments if each.alias_info} == outputs, name


def e4m3(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).float().to(torch.float8_e4m3fn)


def apart(c: torch.Tensor | None = None) -> tuple[Any, ...]:
    flat, scales = e4m3(256 * 16), torch.ones(2, 16)
    layout = torch.tensor([128, 128], dtype=torch.int32)
    return flat, scales, flat.clone(), scales.clone(), layout, c, torch.zeros(2, 16, 16)


def scaled() -> tuple[Any, ...]:
    layout = torch.tensor([32, 64], dtype=torch.int32)
    factors = e4m3(96, 16), torch.ones(3, 16), e4m3(96, 16), torch.ones(3, 16)
    return *factors, layout, None, [32, 64], 32, "counts", 1, torch.zeros(2, 16, 16)


@pytest.mark.parametrize("c", [None, torch.ones(2, 16, 16)], ids=["product", "sum"])
def test_fp8_that_lies_apart(c: torch.Tensor | None) -> None:
    with gemmgen.simulate("sm90", sms=1):
        opcheck(library.k_grouped_fp8_apart_gemm, *apart(c))


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
def test_fp8_whose_scales_the_tensor_core_applies(arch: str) -> None:
    with gemmgen.simulate(arch, sms=1):
        opcheck(library.k_grouped_scaled_gemm, *scaled())


@pytest.mark.parametrize(
    ("form", "given"),
    [(library.k_grouped_fp8_apart_gemm, apart()), (library.k_grouped_scaled_gemm, scaled())],
    ids=["apart", "scaled"],
)
def test_fakes_look_at_no_number(form: Any, given: tuple[Any, ...]) -> None:
    """Which ``opcheck`` lets pass."""
    with FakeTensorMode() as mode:
        form(*(mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in given))
