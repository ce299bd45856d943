"""What tells tensors of a repeated call apart from those that it was made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gemmgen.ops import guards

BF16 = torch.bfloat16


@pytest.mark.parametrize("make", [guards.alike, guards.by_attributes])
def test_guards_tell_apart_all_but_contents_and_addresses(make: Callable[[Any], guards.Alike]) -> None:
    x, y = torch.zeros(4, 8), torch.zeros(8, dtype=BF16)
    compare = make((x, y))
    assert compare(x.clone(), y.clone()) and compare(torch.ones(5, 8)[1:], y)
    others = [x[:3], x[:, :7], torch.zeros(8, 4).T, torch.zeros(4, 9)[:, :8], x.double(), x.to("meta"), None, 3, (x,)]
    others += [torch.nn.Parameter(x), torch._neg_view(x), x.clone().requires_grad_(), x.to_sparse()]
    with torch.inference_mode():
        others.append(torch.zeros(4, 8))
        assert not compare(x, y)
    assert not any(compare(other, y) for other in others)
    weight = torch.nn.Parameter(x)
    assert make((weight,))(weight) and not make((weight,))(x)


def test_torchs_own_guard_is_used_here() -> None:
    assert guards._torch_compares()
