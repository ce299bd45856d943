"""``run`` and ``check`` of kernels in forms that the catalog has none of: right ones are called right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from planting import planted

from gemmgen import catalog
from gemmgen.catalog.dense import accumulating
from gemmgen.commands.checking import ragged_sizes
from gemmgen.commands.running import execute
from gemmgen.ir import DType, HeadSplit, KernelSpec, Operand, Reduce, Scale, SplitK, Step

CPU = torch.device("cpu")
HEADS = HeadSplit(left=2, mid=1, right=6)


def with_step(spec: KernelSpec, step: Step, operand: Operand) -> KernelSpec:
    """The kernel with a step ahead of its own."""
    return spec.replace(name="stepped", operands=(*spec.operands, operand), epilogue=(step, *spec.epilogue))


def with_operands(spec: KernelSpec, *operands: Operand) -> KernelSpec:
    """The kernel with these in place of those of their names."""
    changed = {each.name: each for each in operands}
    return spec.replace(operands=tuple(changed.get(each.name, each) for each in spec.operands))


def shared(name: str, *box: str, on_device: bool = False) -> KernelSpec:
    """A grouped kernel that scales by what all groups share."""
    operand = Operand(name="shared", dtype=DType.F16 if box else DType.F32, box=box, on_device=on_device)
    return with_step(catalog.grouped_specs()[name], Scale(by="shared"), operand)


def shared_weights() -> KernelSpec:
    """Groups of rows that are multiplied by one matrix, for all its scales."""
    spec = catalog.grouped_specs()["sm90_m_grouped_fp8_gemm_nt_bf16_64x128_by_ends"]
    return with_operands(spec, *(each.replace(box=each.plane) for each in spec.operands if each.name in ("b", "sfb")))


def with_heads(spec: KernelSpec) -> KernelSpec:
    return with_operands(spec, spec.output.replace(heads=HEADS))


def stored_by_lanes() -> KernelSpec:
    return catalog.bf16_gemm("nt", catalog.Shape(64, 32, groups=1), DType.F32, direct_store=True)


def sliced() -> KernelSpec:
    spec = stored_by_lanes()
    d = spec.output.replace(box=("s", *spec.output.box), heads=HEADS)
    operands = tuple(d if each == spec.output else each for each in spec.operands)
    return spec.replace(operands=operands, schedule=SplitK(splits=None, slices=True))


def promoted() -> KernelSpec:
    """Scales that summing warps apply, of factors that need none for their range."""
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1))
    return with_operands(spec, *(spec.operand(name).replace(dtype=DType.BF16) for name in "ab"))


def ragged_along_rows() -> KernelSpec:
    """Groups of k, whose words of scales lie [k, m]."""
    spec = catalog.grouped_specs()["sm100_k_grouped_fp8_gemm_tn_e4m3x128_e4m3x128_f32_128x128_add_by_counts"]
    sfa = spec.operand("sfa")
    return with_operands(spec, sfa.replace(box=sfa.box[::-1], major="m"))


def reducing(name: str, function: str, along: str, *box: str) -> KernelSpec:
    """A grouped kernel that reduces what it stores."""
    operand = Operand(name="reduced", dtype=DType.F32, box=box)
    step = Reduce(function=function, along=along, to="reduced")  # type: ignore[arg-type]
    return with_step(catalog.grouped_specs()[name], step, operand)


BY_ENDS, OF_K = (
    "sm90_m_grouped_bf16_gemm_nt_bf16_64x128_by_ends",
    "sm90_k_grouped_bf16_gemm_tn_bf16_64x128_by_ends_a128",
)
FORMS: dict[str, Callable[[], KernelSpec]] = {
    "groups of rows share a vector": lambda: shared(BY_ENDS, "n"),
    "groups of rows share a number on the device": lambda: shared(BY_ENDS, on_device=True),
    "groups of rows share weights": shared_weights,
    "groups of k share columns": lambda: shared(OF_K, "n"),
    "groups of k share rows": lambda: shared(OF_K, "m"),
    "groups of k have scales along m": ragged_along_rows,
    "heads are added to": lambda: with_heads(accumulating(stored_by_lanes())),
    "slices with heads": sliced,
    "bf16 with scales": promoted,
    "groups of rows reduced along n": lambda: reducing(BY_ENDS, "amax", "n", "m"),
    "groups of rows reduced along m": lambda: reducing(BY_ENDS, "sum", "m", "g", "n"),
    "groups of rows reduced to a number each": lambda: reducing(BY_ENDS, "sum_of_squares", "mn", "g"),
    "groups of k reduced to a number each": lambda: reducing(OF_K, "sum_of_squares", "mn", "g"),
}


@pytest.mark.parametrize("form", FORMS)
def test_right_kernels_are_called_right(form: str) -> None:
    spec = FORMS[form]()
    for sizes in ragged_sizes(spec):
        outcome = execute(spec, sizes, CPU, "random", 1)
        assert not outcome.wrong and outcome.warnings == (), (sizes, outcome.errors)


def test_reductions_of_groups_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel that stores the right matrices and the wrong largest magnitudes."""
    spec = reducing(BY_ENDS, "amax", "n", "m")
    with planted(monkeypatch, "gemmgen::Amax", "gemmgen::Sum"):
        assert execute(spec, ragged_sizes(spec)[1], CPU, "early", 1).wrong
