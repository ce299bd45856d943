"""Where tensors lie: the rules of the copy engine, of plain pointers and of outputs that must not meet inputs.

Judges addresses and strides, never contents. A fault is a sentence: the tensor, the value, the rule and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gemmgen.ir import AnyPlan, LayoutPlan, Operand
from gemmgen.ops.problem import Tensors
from gemmgen.runtime.arguments import SPREAD_ELEMENTS, SPREADING

ALIGNMENT = 16
"""Bytes that TMA wants base addresses and row pitches to be multiples of."""
SPREAD_ALIGNMENT = 32
"""Likewise where it spreads 4-bit numbers to a byte each."""


def check_layouts(plan: AnyPlan, tensors: Tensors) -> None:
    """Raise ``ValueError`` for the first tensor whose address or strides the plan's kernel cannot use."""
    mapped = {entry.operand: entry.element for entry in plan.tensor_maps}
    outputs = (plan.output,) if isinstance(plan, LayoutPlan) else plan.outputs
    _check_ends([plan.operand(name) for name, element in mapped.items() if element == SPREADING], tensors)
    for operand in plan.operands:
        if operand.is_scalar:
            continue
        tensor = tensors[operand.name]
        stored = operand.name in outputs
        if operand.name in mapped:
            fault = tma_store_fault(operand, tensor) if stored else tma_fault(operand, tensor)
            if mapped[operand.name] == SPREADING:
                fault = fault or spreading_fault(operand, tensor)
        else:
            fault = pointer_fault(operand, tensor, stored)
        if stored and len(operand.box) > 1:
            fault = fault or _output_fault(operand, tensor)
            if isinstance(plan, LayoutPlan) and plan.fill_pads:
                fault = fault or _pads_fault(operand, tensor)
        if fault:
            raise ValueError(fault)


def _check_ends(spread: list[Operand], tensors: Tensors) -> None:
    """What TMA reads behind the end of 4-bit rows meets zeros of the other factor, unless that is read likewise."""
    if len(spread) < 2:
        return
    operand = spread[0]
    count = tensors[operand.name].shape[operand.box.index(operand.inner)] * operand.dtype.packed
    if count % SPREAD_ELEMENTS:
        names, padded = " and ".join(each.name for each in spread), -(-count // SPREAD_ELEMENTS) * SPREAD_ELEMENTS
        raise ValueError(
            f"{operand.name}: {operand.inner} is {count}; with these scales TMA spreads the 4-bit numbers of {names} "
            f"to bytes, {SPREAD_ELEMENTS} at a time, and what is behind both would be multiplied; pad {operand.inner} "
            f"of both factors to {padded} with zeros, or give both a scale for 32"
        )


def tma_fault(operand: Operand, tensor: torch.Tensor, stored: bool = False) -> str | None:
    """Why TMA cannot reach a two-dimensional tensor, or None; of one that is ``stored`` to a copy is no way out."""
    shape, strides, size = tensor.shape, tensor.stride(), tensor.element_size()
    inner, outer = operand.box.index(operand.inner), operand.box.index(operand.outer)
    if 0 in shape:
        return None
    if fault := _inner_fault(operand, tensor, inner, stored):
        return fault
    pitch = strides[outer] * size
    if shape[outer] > 1 and pitch % ALIGNMENT:
        return (
            f"{operand.name}: {_pitch_word(operand)} pitch is {strides[outer]} elements = {pitch} bytes; "
            f"TMA needs a multiple of {ALIGNMENT} bytes; {_pitch_fix(operand, shape[inner], size, stored)}"
        )
    if shape[outer] > 1 and strides[outer] < shape[inner]:
        return (
            f"{operand.name}: {_pitch_word(operand)}s of {shape[inner]} elements start only {strides[outer]} elements "
            f"apart and overlap; TMA needs them apart; {_fix(operand.name, 'contiguous()', stored)}"
        )
    if operand.grouped and shape[0] > 1 and tensor.stride(0) * size % ALIGNMENT:
        return (
            f"{operand.name}: groups are {tensor.stride(0)} elements = {tensor.stride(0) * size} bytes apart; TMA "
            f"needs a multiple of {ALIGNMENT} bytes; cut the tensor from one with more rows a group"
        )
    return _address_fault(operand.name, tensor, ALIGNMENT, "TMA", stored)


def tma_store_fault(operand: Operand, tensor: torch.Tensor) -> str | None:
    """Why TMA cannot write a tensor, or None. It writes 16-byte chunks whole, also the one that a row ends in."""
    count, size = tensor.shape[operand.box.index(operand.inner)], tensor.element_size()
    if count * size % ALIGNMENT and 0 not in tensor.shape:
        padded = -(-count * size // ALIGNMENT) * ALIGNMENT // size
        return (
            f"{operand.name}: rows are {count} elements = {count * size} bytes; TMA stores whole chunks of {ALIGNMENT} "
            f"bytes and would write past them; pad {operand.inner} to {padded}, or store without a ring"
        )
    return tma_fault(operand, tensor, stored=True)


def spreading_fault(operand: Operand, tensor: torch.Tensor) -> str | None:
    """Why TMA cannot spread packed 4-bit numbers to a byte each, beyond its rules for bytes, or None."""
    inner, outer = operand.box.index(operand.inner), operand.box.index(operand.outer)
    count = tensor.shape[inner] * operand.dtype.packed
    if 0 in tensor.shape:
        return None
    padded = -(-count // SPREAD_ELEMENTS) * SPREAD_ELEMENTS
    if not _has_room(tensor, outer, padded // operand.dtype.packed):
        return (
            f"{operand.name}: {operand.inner} is {count}; beside an 8-bit factor, TMA reads 4-bit numbers "
            f"{SPREAD_ELEMENTS} at a time; pad {operand.inner} of both factors to {padded} with zeros, or cut "
            f"{operand.name} from one with rows of {padded // operand.dtype.packed} bytes"
        )
    if tensor.shape[outer] > 1 and tensor.stride(outer) % SPREAD_ALIGNMENT:
        return (
            f"{operand.name}: {_pitch_word(operand)} pitch is {tensor.stride(outer)} bytes; TMA needs a multiple of "
            f"{SPREAD_ALIGNMENT} to spread 4-bit numbers to bytes; pass {operand.name}.contiguous()"
        )
    if operand.grouped and tensor.shape[0] > 1 and tensor.stride(0) % SPREAD_ALIGNMENT:
        return (
            f"{operand.name}: groups are {tensor.stride(0)} bytes apart; TMA needs a multiple of {SPREAD_ALIGNMENT} to "
            f"spread 4-bit numbers to bytes; pass {operand.name}.contiguous()"
        )
    return _address_fault(operand.name, tensor, SPREAD_ALIGNMENT, "TMA, to spread 4-bit numbers to bytes,")


def reads_past_rows(plan: AnyPlan, tensors: Tensors) -> bool:
    """Whether TMA reads what is behind a row's end, for which there is room in tensors that were looked at alone."""
    spread = (plan.operand(entry.operand) for entry in plan.tensor_maps if entry.element == SPREADING)
    return any(tensors[each.name].shape[-1] * each.dtype.packed % SPREAD_ELEMENTS for each in spread)


def _has_room(tensor: torch.Tensor, outer: int, bytes_of_row: int) -> bool:
    """Whether every row has so many bytes, the last one too: what is behind its end meets zeros of the other factor."""
    if tensor.shape[outer] > 1 and tensor.stride(outer) < bytes_of_row:
        return False
    others = zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    last = tensor.storage_offset() + sum((count - 1) * stride for count, stride in others)
    return bool(tensor.untyped_storage().nbytes() - last >= bytes_of_row)


def pointer_fault(operand: Operand, tensor: torch.Tensor, stored: bool = False) -> str | None:
    """Why a kernel cannot read or write a tensor through a pointer and a row stride, or None."""
    if 0 in tensor.shape:
        return None
    fault = _inner_fault(operand, tensor, operand.box.index(operand.inner), stored) if operand.box else None
    return fault or _address_fault(operand.name, tensor, tensor.element_size(), "the kernel", stored)


def _inner_fault(operand: Operand, tensor: torch.Tensor, inner: int, stored: bool) -> str | None:
    if tensor.shape[inner] == 1 or tensor.stride(inner) == 1:
        return None
    return (
        f"{operand.name}: strides are {tuple(tensor.stride())}; this kernel needs {operand.inner} (dimension {inner}) "
        f"contiguous, stride 1; {_contiguous_fix(operand, inner, stored)}"
    )


def _contiguous_fix(operand: Operand, inner: int, stored: bool) -> str:
    how = "contiguous()" if inner == len(operand.box) - 1 else "mT.contiguous().mT"
    # Operators may have turned what they were given: the sentence says which way round the tensor is.
    return _fix(operand.name, how, stored) + ("" if stored else f", of {operand.name} as ({', '.join(operand.box)})")


def _fix(name: str, how: str, stored: bool) -> str:
    """What a caller may do; nobody would see what is written to a copy."""
    return f"pass a new tensor, and copy it to {name} then" if stored else f"pass {name}.{how}"


def _pitch_word(operand: Operand) -> str:
    return "row" if operand.inner == operand.box[-1] else "column"


def _pitch_fix(operand: Operand, inner: int, size: int, stored: bool) -> str:
    """Rows in bytes; of what lies two a byte the extent is twice as many."""
    step, packed = ALIGNMENT // size, operand.dtype.packed
    padded = -(-inner // step) * step
    if padded == inner:
        return _fix(operand.name, "contiguous()", stored)
    return f"pad {operand.inner} to {padded * packed}, or cut the tensor from one with rows of {padded} elements"


def _address_fault(name: str, tensor: torch.Tensor, alignment: int, who: str, stored: bool = False) -> str | None:
    past = tensor.data_ptr() % alignment
    if not past:
        return None
    return (
        f"{name}: address is {past} bytes past a multiple of {alignment} (storage offset {tensor.storage_offset()} "
        f"elements); {who} needs a multiple of {alignment} bytes; {_fix(name, 'clone()', stored)}"
    )


def _output_fault(operand: Operand, tensor: torch.Tensor) -> str | None:
    inner, outer = operand.box.index(operand.inner), operand.box.index(operand.outer)
    count, pitch = tensor.shape[inner], tensor.stride(outer)
    if tensor.shape[outer] > 1 and pitch < count:
        word = _pitch_word(operand)
        return (
            f"{operand.name}: {word}s of {count} elements start only {pitch} elements apart and overlap; "
            f"pass a tensor with a {word} stride of at least {count}"
        )
    if operand.grouped and len(operand.plane) == 2 and tensor.shape[0] > 1:
        apart, own = tensor.stride(0), (tensor.shape[outer] - 1) * pitch + count
        in_turn = tensor.shape[outer] > 1 and pitch >= (tensor.shape[0] - 1) * apart + count and apart >= count
        if apart < own and not in_turn:
            return (
                f"{operand.name}: groups of {own} elements start only {apart} elements apart and overlap; pass one "
                f"with a group stride of at least {own}"
            )
    return None


def _pads_fault(operand: Operand, tensor: torch.Tensor) -> str | None:
    """Why there is no room to fill up the lines of an output to whole chunks, or None."""
    inner, outer = operand.box.index(operand.inner), operand.box.index(operand.outer)
    step = ALIGNMENT // tensor.element_size()
    filled = -(-tensor.shape[inner] // step) * step
    last = tensor.storage_offset() + (tensor.shape[outer] - 1) * tensor.stride(outer) + filled
    fits = last * tensor.element_size() <= tensor.untyped_storage().nbytes()
    if 0 in tensor.shape or (fits and (tensor.shape[outer] == 1 or tensor.stride(outer) >= filled)):
        return None
    return (
        f"{operand.name}: {_pitch_word(operand)}s of {tensor.shape[inner]} elements are filled up with zeros to "
        f"{filled} and start {tensor.stride(outer)} apart; cut it from a tensor with {operand.inner} = {filled} that "
        "holds nothing else"
    )


def check_overlap(
    output: str,
    tensors: Tensors,
    in_place: Sequence[str],
    outputs: Sequence[str] = (),
    known_as: Mapping[str, str] | None = None,
) -> None:
    """Refuse an output that shares bytes with another tensor.

    Exactly the same bytes as one of ``in_place`` are fine, which is read first. ``outputs`` are those that are written;
    ``known_as`` has what callers call a tensor, where that is not its name.
    """
    d = tensors[output]
    for name, tensor in tensors.items():
        if name == output or disjoint(d, tensor):
            continue
        if name in in_place and _same_place(d, tensor):
            continue
        called = (known_as or {}).get(name, name)
        where = (
            f"{output}: its memory [{d.data_ptr():#x}, +{span(d)} bytes] overlaps {called} [{tensor.data_ptr():#x}, "
            f"+{span(tensor)} bytes]; an output may not share memory with "
        )
        if name in outputs:
            raise ValueError(f"{where}another; pass one that lies elsewhere")
        exception = f" unless it is exactly {output}" if name in in_place else ""
        raise ValueError(f"{where}an input{exception}; pass {called}.clone()")


def span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    steps: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((steps + 1) * tensor.element_size())


def disjoint(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors share no byte; blocks cut from one buffer count as disjoint, and so do meta tensors."""
    if x.is_meta:
        return True
    start, end = x.data_ptr(), y.data_ptr()
    if start + span(x) <= end or end + span(y) <= start or not (x.numel() and y.numel()):
        return True
    return any(_in_turn(x, y, period) for period in {*_pitches(x), *_pitches(y)})


def _pitches(tensor: torch.Tensor) -> list[int]:
    """In bytes, of every dimension that has any."""
    size = tensor.element_size()
    return [stride * size for count, stride in zip(tensor.shape, tensor.stride(), strict=True) if count > 1 and stride]


def _in_turn(x: torch.Tensor, y: torch.Tensor, period: int) -> bool:
    """Whether both are blocks that come again after so many bytes, side by side: columns or rows of one buffer."""
    offset = (y.data_ptr() - x.data_ptr()) % period
    return bool(_width(x, period) <= offset and offset + _width(y, period) <= period)


def _width(tensor: torch.Tensor, period: int) -> int:
    """Bytes from the first to the end of the last, those of dimensions alone that do not step by whole periods."""
    size = tensor.element_size()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    own = sum((count - 1) * stride for count, stride in steps if stride * size % period)
    return int((own + 1) * size)


def _same_place(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype)


def check_no_gradient(tensors: Tensors) -> None:
    """These operators have no backward: refuse to pretend otherwise."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            raise RuntimeError(
                f"{name}: requires_grad is True, but this operator has no backward; call it under torch.no_grad() "
                f"or torch.inference_mode(), or pass {name}.detach()"
            )
