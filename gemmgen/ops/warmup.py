"""``warmup``: compile and load what calls will need before they come, without launching anything.

Knows operators and targets; which kernel a call takes is told by the call itself, with meta tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from gemmgen.ops.fused_op import FusedOp
from gemmgen.ops.grouped_op import GroupedOp
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.spec_op import SpecOp
from gemmgen.ops.warm_arguments import OPERATORS, call_arguments, fused_arguments
from gemmgen.ops.whole_numbers import at_least, whole_numbers
from gemmgen.runtime.architectures import Architecture, ArchitectureLike, resolve
from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.gpu_target import GpuTarget
from gemmgen.runtime.kernel_text import KernelText
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.preparation import Preparation, preparing
from gemmgen.runtime.targets import gpu

Shape = tuple[int, int, int]
Progress = Callable[[int, int, str], None]


def warmup(
    op: str | Callable[..., Any],
    shapes: Iterable[Shape],
    *,
    arch: ArchitectureLike | None = None,
    sms: int | None = None,
    card: str | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    **choices: Any,
) -> list[str]:
    """Compile, and on a GPU load, the kernels that calls of an operator with these (m, n, k) take; launch nothing.

    After it, calls of these shapes neither compile nor load, so the first may be inside a CUDA graph's capture, as long
    as settings of the process such as ``set_num_sms`` are those that it was called under.

    op: an operator by name or itself, ``"fp8_gemm_nt"``; what ``gemmgen.fuse`` or ``gemmgen.op`` made.
    shapes: extents of m, n and k. Kernels serve many: listing the smallest and the largest m is not enough.
    arch: compile for this architecture (``"sm90"``, ``"sm_103a"``) into the cache on disk, with or without a GPU; by
        default for the current GPU, where kernels are loaded, too.
    sms, card: with ``arch``, multiprocessors and name of the GPU that is meant; they decide which kernel is chosen.
        By default those of the usual one, and no name: then what was measured on a card is not asked for.
    progress: called as ``progress(done, total, kernel)`` in this thread whenever a kernel is there.
    workers: threads that compile at a time; as many as there are cores by default.
    choices: the operator's own keyword arguments. Where it takes a tensor, its dtype, or True for the usual one:
        ``d=torch.float32, c=True, bias=torch.bfloat16, activation="silu", recipe=(1, 1, 128)``. Tensors count as
        contiguous; ``scales="k"`` says that fp32 scales of a lie along k and not m, ``a`` and ``b`` are types of
        fp8_fp4_gemm's factors, ``num_groups`` is how many groups share the rows, or k (8, unless it is chosen). Groups
        of k are added to fp32 sums where those lie, unless ``c`` is a type or None, or ``d`` another type.

    Returns the kernels' names, those of layout kernels that such calls run first included. Raises ``ValueError`` or
    ``TypeError`` where a call would, and for an unknown operator or choice; ``DeviceError`` without a GPU and ``arch``;
    ``CompileError`` where a kernel does not compile.
    """
    if sms is not None:
        sms = at_least(1, "sms", sms, "those of the usual GPU")
    target = None if arch is not None else _gpu_here()
    architecture = resolve(arch) if target is None else target.architecture
    if target is not None:
        sms, card = target.sms, target.card
    with preparing(architecture, sms, card) as preparation:
        for shape in shapes:
            note_call(op, preparation, *_extents(shape), choices)
    _compile(list(preparation.texts), architecture, target, progress, workers)
    return [text.entry for text in preparation.texts]


def _gpu_here() -> GpuTarget:
    if not torch.cuda.is_available():
        raise DeviceError('arch: is None and there is no GPU; name what to compile for, such as arch="sm90"')
    return gpu()


def _extents(shape: Any) -> Shape:
    extents = whole_numbers(shape)
    if extents is None or len(extents) != 3:
        raise TypeError(f"shapes: {shape!r} is no problem; each is three whole numbers (m, n, k)")
    if min(extents) < 0:
        raise ValueError(f"shapes: {extents} has a negative extent; m, n and k are at least 0")
    return extents


def note_call(op: Any, preparation: Preparation, m: int, n: int, k: int, choices: Mapping[str, Any]) -> None:
    """One call with meta tensors, which loads its kernels into ``preparation``."""
    if isinstance(op, SpecOp):
        if op.spec.arch != preparation.family:
            raise ValueError(
                f"op: {op.spec.name} is for {op.spec.arch}; warm it up there, not for {preparation.family}"
            )
        preparation.load(kernel_of(op.spec).text)
        return
    if isinstance(op, FusedOp | GroupedOp):
        op(**fused_arguments(op, preparation.family, m, n, k, choices))
        return
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    if name not in OPERATORS:
        raise ValueError(f"op: {name!r} is unknown; use one of {', '.join(OPERATORS)}, or what gemmgen.fuse made")
    inspect.unwrap(OPERATORS[name])(**call_arguments(name, preparation.family, m, n, k, choices))


def _compile(
    texts: list[KernelText],
    architecture: Architecture,
    target: GpuTarget | None,
    progress: Progress | None,
    workers: int | None,
) -> None:
    """Side by side; loading is quick and happens here."""
    for done, text in enumerate(compile_texts(texts, architecture, workers), 1):
        if target is not None:
            target.load(text)
        if progress is not None:
            progress(done, len(texts), text.entry)
