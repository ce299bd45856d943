"""Every spec of the catalog on a GPU, bit for bit on inputs whose sums are exact."""

from __future__ import annotations

import pytest
import torch
from problems import bf16_problem, fp8_problem, whole_numbers
from reference import exact_result, mn_major

import gemmgen
from gemmgen import catalog
from gemmgen.ir import Arch, DType, KernelSpec

CUDA = "cuda"


PLAIN = {name: spec for name, spec in catalog.specs().items() if name not in catalog.fused_specs()}
HOPPER = [name for name, spec in PLAIN.items() if spec.arch == Arch.SM90 and not spec.prologue]


@pytest.mark.parametrize("name", HOPPER)
def test_every_shipped_kernel(name: str) -> None:
    """Ragged in every direction, several tiles, a tail of K: exact sums, bit for bit."""
    spec = catalog.specs()[name]
    tensors = operands(spec, 328 if "_direct_" not in name else 333, 401, 712)
    d = gemmgen.op(spec)(**tensors)
    expected = exact_result(spec, tensors)
    assert d.dtype == expected.dtype and torch.equal(d, expected)


def operands(spec: KernelSpec, n: int, m: int, k: int) -> dict[str, torch.Tensor]:
    """Exact inputs laid out as a spec reads them, extents rounded up to what its strides need."""
    if spec.operand("a").inner == "m":
        m = -(-m // 8) * 8
    if spec.operand("b").inner == "n":
        n = -(-n // 8) * 8
    c = (
        {"c": whole_numbers(m, n, _torch(spec.output.dtype), CUDA)}
        if any(each.name == "c" for each in spec.operands)
        else {}
    )
    if "sfa" not in [each.name for each in spec.operands]:
        a, b = bf16_problem(m, n, k, CUDA)
        lie = {True: lambda x: x.T.contiguous().T, False: lambda x: x}
        return {"a": lie[spec.operand("a").inner == "m"](a), "b": lie[spec.operand("b").inner == "n"](b), **c}
    k = -(-k // 16) * 16
    problem = fp8_problem(m, n, k, 1 if spec.operand("sfb").box[0] == "n" else 128, CUDA)
    tensors = problem.tensors
    for scale, axis in (("sfa", "m"), ("sfb", "n")):
        if spec.operand(scale).inner == axis:
            tensors[scale] = mn_major(tensors[scale])
    return tensors | c


def _torch(dtype: DType) -> torch.dtype:
    return torch.float32 if dtype == DType.F32 else torch.bfloat16
