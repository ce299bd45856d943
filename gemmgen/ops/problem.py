"""From the tensors of a call to the extents m, n and k, refusing what does not fit together.

Works on shapes, dtypes and devices alone, so that real, fake and meta tensors pass through the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from gemmgen.ir import DType, Operand, split_axis
from gemmgen.ir.spec import GATED_COLUMNS
from gemmgen.runtime.arguments import expected_shape
from gemmgen.runtime.errors import DeviceError

TORCH_DTYPES = {
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
    DType.E2M1: torch.int8,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.F32: torch.float32,
    DType.I32: torch.int32,
    DType.UE8M0: torch.float8_e8m0fnu,
    DType.UE4M3: torch.float8_e4m3fn,
    DType.UE8M0X4: torch.int32,
    DType.UE4M3X4: torch.int32,
}
EXTENT_LIMIT = 2**31 - 1024
"""Coordinates of the copy engine are 32-bit and signed; a last tile may reach past the matrix."""

Tensors = Mapping[str, torch.Tensor]


def check_problem(
    operands: Sequence[Operand], tensors: Tensors, gated: bool = False, outputs: Sequence[str] = ()
) -> dict[str, int]:
    """The extents of m, n and k; raises ``TypeError`` or ``ValueError`` naming the tensor that does not fit.

    Where columns are ``gated``, n is a multiple of 16. ``outputs`` are names of tensors to write to.
    """
    present = [operand for operand in operands if operand.name in tensors]
    for operand in present:
        _check_tensor(operand, tensors[operand.name], operand.name in outputs)
    check_devices(tensors)
    sizes = _infer_sizes(present, tensors)
    if gated:
        _check_gated(present, sizes["n"])
    for operand in present:
        _check_shape(operand, tensors[operand.name], sizes)
    return sizes


def check_devices(tensors: Tensors) -> torch.device:
    """The one device that holds all tensors."""
    (first, tensor), *others = tensors.items()
    for name, other in others:
        if other.device != tensor.device:
            raise DeviceError(
                f"{name}: is on {other.device}, but {first} is on {tensor.device}; all tensors of a call must be on "
                f"one device, so pass {name}.to({str(tensor.device)!r})"
            )
    return tensor.device


def _check_tensor(operand: Operand, tensor: torch.Tensor, stored: bool) -> None:
    if tensor.dtype != _dtype(operand):
        advice = "; pass one of that type" if stored else _dtype_advice(operand, tensor)
        raise TypeError(f"{operand.name}: dtype is {tensor.dtype}; must be {_dtype(operand)}{advice}")
    check_rank(operand, tensor)


def check_strided(name: str, tensor: torch.Tensor) -> None:
    """Refuse what does not lie in memory by strides: torch would look for an operator of that layout."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: layout is {tensor.layout}; must be strided, so pass {name}.to_dense()")


def check_writable(name: str, tensor: torch.Tensor) -> None:
    """Refuse an output whose memory holds its values negated, which torch's dispatcher does not name."""
    if not torch.compiler.is_compiling() and tensor.is_neg():
        raise ValueError(
            f"{name}: is a view whose memory holds its values negated; kernels write memory as it is, so pass a new "
            f"tensor, and copy it to {name} then"
        )


def check_rank(operand: Operand, tensor: torch.Tensor) -> None:
    """Refuse a value that is no strided tensor of the operand's dimensions."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{operand.name}: is a {type(tensor).__name__}; must be a torch.Tensor")
    check_strided(operand.name, tensor)
    if tensor.dim() != len(operand.box):
        raise ValueError(
            f"{operand.name}: shape {_text(tensor.shape)} has {tensor.dim()} dimensions; "
            f"must have {len(operand.box)}: ({', '.join(operand.box)})"
        )


def _dtype(operand: Operand) -> torch.dtype:
    return TORCH_DTYPES[operand.dtype]


def _dtype_advice(operand: Operand, tensor: torch.Tensor) -> str:
    if operand.dtype == DType.F32 and tensor.dtype in (torch.int32, torch.uint8, torch.float8_e8m0fnu):
        return "; UE8M0 scales belong to sm100 and sm120, so pass the scales as fp32 numbers"
    if operand.dtype == DType.E2M1:
        return f"; 4-bit numbers lie two a byte, so quantise {operand.name}, or pass {operand.name}.view(torch.int8)"
    if operand.dtype in (DType.E4M3, DType.E5M2):
        return f"; quantise {operand.name} first"
    return f"; pass {operand.name}.to({_dtype(operand)})"


def _infer_sizes(operands: Sequence[Operand], tensors: Tensors) -> dict[str, int]:
    sizes: dict[str, int] = {}
    source: dict[str, str] = {}
    for operand in operands:
        for axis, size in zip(operand.box, tensors[operand.name].shape, strict=True):
            name, divisor = split_axis(axis)
            if divisor != 1 or (operand.heads is not None and name == "n"):
                continue
            if axis == operand.inner:
                size = size * operand.dtype.packed
            if name in sizes:
                if axis == operand.inner and operand.dtype.packed > 1:
                    _check_pairs(operand, source[name], name, sizes[name])
                require(size == sizes[name], _disagreement(operand.name, size, source[name], sizes[name], name))
            else:
                sizes[name], source[name] = size, operand.name
                _check_extent(operand.name, name, size)
    return sizes


def _check_pairs(operand: Operand, other: str, axis: str, size: int) -> None:
    """Refuse an extent of which the last element would have half a byte."""
    packed = operand.dtype.packed
    require(
        size % packed == 0,
        lambda: f"{other}: {axis} is {size}; elements of {operand.name} lie {packed} a byte, so {axis} must be a "
        f"multiple of {packed}; pad it to {size + 1}",
    )


def _check_gated(operands: Sequence[Operand], n: int) -> None:
    """Refuse columns that are not whole groups of gate and up."""
    name = next(operand.name for operand in operands if "n" in operand.box)
    padded = -(-n // GATED_COLUMNS) * GATED_COLUMNS
    require(
        n % GATED_COLUMNS == 0,
        lambda: f"{name}: n is {n}; a gate joins 8 columns with 8 others, so n must be a multiple of {GATED_COLUMNS}; "
        f"pad n to {padded} with zeros",
    )


def packed_extents(operand: Operand, tensor: torch.Tensor) -> dict[str, int]:
    """The extents that one tensor's shape tells, elements that share a byte counted apart."""
    return _infer_sizes([operand], {operand.name: tensor})


def _check_extent(operand: str, axis: str, size: int) -> None:
    if isinstance(size, int) and size > EXTENT_LIMIT:
        raise ValueError(
            f"{operand}: {axis} is {size}; must be at most {EXTENT_LIMIT}, so split the problem along {axis}"
        )


def _disagreement(operand: str, size: int, other: str, other_size: int, axis: str) -> Callable[[], str]:
    return lambda: f"{operand}: {axis} is {size}, but {axis} of {other} is {other_size}; they must be equal"


def _check_shape(operand: Operand, tensor: torch.Tensor, sizes: Mapping[str, int]) -> None:
    if (heads := operand.heads) is not None:
        columns = -(-sizes["n"] // split_axis(operand.inner)[1])
        padded = -(-columns // heads.head) * heads.head
        require(
            columns % heads.head == 0,
            lambda: f"{operand.name}: {operand.inner} is {columns} without its gaps; must be whole heads of "
            f"{heads.left} + {heads.right} columns, so pad {operand.inner} with zeros to {padded}, or pass the heads "
            "that there are",
        )
        _check_extent(operand.name, f"{operand.inner} with its gaps", heads.columns(columns))
    wanted = expected_shape(operand, sizes)
    for axis, found, size in zip(operand.box, tensor.shape, wanted, strict=True):
        if operand.ragged and axis == operand.outer:
            continue  # as many as the call says: each group's are rounded up by themselves
        require(found == size, lambda: _shape_message(operand, tensor, wanted, sizes))


def _shape_message(operand: Operand, tensor: torch.Tensor, wanted: Sequence[int], sizes: Mapping[str, int]) -> str:
    extents = ", ".join(f"{axis}={sizes[axis]}" for axis in operand.axes)
    heads = f", {operand.heads.mid} more for each head of {operand.heads.head}" if operand.heads else ""
    rounded = ", rounded up" if any(split_axis(axis)[1] != 1 for axis in operand.box) else ""
    return (
        f"{operand.name}: shape is {_text(tensor.shape)}; must be {_text(wanted)} = "
        f"({', '.join(operand.box)}){rounded}{heads} for {extents}"
    )


def _text(shape: Sequence[int]) -> str:
    return "(" + ", ".join(str(size) for size in shape) + ")"


def require(condition: bool, message: Callable[[], str]) -> None:
    """``ValueError(message())`` unless the condition holds; symbolic conditions become assertions, not guards."""
    torch._check_value(condition, message)
