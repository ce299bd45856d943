"""Whether tensors are like others that were seen before: a function that compares all but contents and addresses.

Torch's own guard of compiled graphs does it in one call: types, dispatch keys (so also modes, functorch, inference mode
and autocast), dtype, device, extents, strides and ``requires_grad``. It is no public interface, so it is tried out
first; where it does not behave, a slower function asks each tensor. Whether gradients are enabled is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

Alike = Callable[..., bool]
"""Takes as many values as tensors were given, all different objects; False for what is no tensor, too."""


def alike(tensors: Sequence[torch.Tensor]) -> Alike:
    """A function that says whether its arguments are like these tensors, which are all different objects."""
    return (_by_torch if _torch_compares() else by_attributes)(tensors)


def _by_torch(tensors: Sequence[torch.Tensor]) -> Alike:
    from torch._C._dynamo.guards import TensorGuards

    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
    strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    compare: Alike = guards.check
    return compare


def by_attributes(tensors: Sequence[torch.Tensor]) -> Alike:
    """The same from public attributes."""
    wanted = [_attributes(tensor) for tensor in tensors]
    around = _surroundings()

    def compare(*others: Any) -> bool:
        return _surroundings() == around and all(
            isinstance(other, torch.Tensor) and _attributes(other) == one
            for other, one in zip(others, wanted, strict=True)
        )

    return compare


def _attributes(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        type(tensor),
        tensor.dtype,
        tensor.layout,
        tensor.device,
        tensor.shape,
        tensor.stride() if tensor.layout == torch.strided else None,
        tensor.requires_grad,
        tensor.is_inference(),
        tensor.is_neg(),
    )


def _surroundings() -> tuple[Any, ...]:
    level = torch._C._functorch.peek_interpreter_stack()
    return torch._C._len_torch_dispatch_stack(), level is None, torch.is_inference_mode_enabled()


@cache
def _torch_compares() -> bool:
    """Whether torch's guard takes these arguments and tells apart what it must."""
    with torch.inference_mode(False), torch.no_grad():
        x, y = torch.zeros(4, 8), torch.zeros(8)
        others = [x[:3], x[:, :7], torch.zeros(8, 4).T, torch.zeros(4, 16)[:, ::2], x.double(), x.to("meta")]
        others += [torch.nn.Parameter(x), torch._neg_view(x), None, y]
        others.append(x.clone().requires_grad_())
        weight = torch.nn.Parameter(x)
        try:
            compare = _by_torch((x, y))
            same = compare(x.clone(), y.clone()) and _by_torch((weight,))(weight)
            with torch.inference_mode():
                others.append(torch.zeros(4, 8))
                same = same and not compare(x, y)
            with torch.enable_grad():
                return bool(same) and not any(compare(other, y) or compare(y, other) for other in others)
        except (AttributeError, ImportError, TypeError, RuntimeError):
            return False
