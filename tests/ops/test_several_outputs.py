"""What a chain keeps on its way, beside what it stores: every path, split sums, quantised and swapped outputs."""

from __future__ import annotations

import chains
import pytest
import reference
import torch
from opchecks import opcheck
from reference import exact_factor
from test_quantised_outputs import FORMS, WIDE, as_bytes, quantised
from test_rounded_outputs import PATHS

import gemmgen
from gemmgen.catalog import WarpShape, dense_sm120
from gemmgen.ir import Activation, Bias, Cast, DType, Epilogue, Keep, KernelSpec, Operand, Residual, Store

PRE = Operand(name="pre", dtype=DType.F32, box=("m", "n"))
BIAS = Operand(name="bias", dtype=DType.F32, box=("n",))


def with_pre(base: KernelSpec, pre: Operand = PRE) -> KernelSpec:
    """The kernel with a bias and an activation, which keeps what goes into the activation."""
    extra = (Bias(vector="bias"), Keep(to="pre"), Activation(function="silu"))
    return base.replace(name="with_pre", operands=(*base.operands, BIAS, pre), epilogue=(*extra, *base.epilogue))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_keeps(path: str) -> None:
    """Columns of an odd number, so that pairs end in the middle and rows start at odd places."""
    spec = with_pre(PATHS[path](DType.BF16), PRE.replace(dtype=DType.F16))
    odd = "direct" in path or "swapped" in path
    chains.run_and_check(spec, {"m": 67, "n": 137 if odd else 136, "k": 40}, seed=2)


@pytest.mark.parametrize("schedule", ["early", "late", "random", "starve"])
def test_the_last_of_several_ctas_keeps(schedule: str) -> None:
    base = dense_sm120.bf16_gemm("nt", WarpShape(64, 64, splits=3), DType.F32)
    chains.run_and_check(with_pre(base), {"m": 70, "n": 72, "k": 400}, seed=3, schedule=schedule)


@pytest.mark.parametrize("arch", chains.BASES)
def test_a_quantised_output_has_company(arch: str) -> None:
    form, m, n = FORMS["mxfp8"], 35, 144
    base = quantised(WIDE[arch](DType.BF16), form)
    spec = base.replace(operands=(*base.operands, PRE), epilogue=(base.epilogue[0], Keep(to="pre"), base.epilogue[1]))
    tensors, _ = chains.data(spec, {"m": m, "n": n, "k": 40}, seed=5)
    with gemmgen.simulate(arch, schedule="random", seed=5, sms=2):
        d, d_sf, pre = gemmgen.op(spec)(**tensors)
    reference.check(pre, reference.kept(spec)["pre"], tensors)
    codes, scales = form.cast(pre)
    assert torch.equal(as_bytes(d), as_bytes(codes)) and torch.equal(as_bytes(d_sf), as_bytes(scales))


def test_a_call_returns_the_stored_output_first() -> None:
    spec = with_pre(chains.BASES["sm90"](DType.BF16))
    tensors, _ = chains.data(spec, {"m": 5, "n": 24, "k": 16}, seed=1)
    pre = torch.full((5, 24), torch.nan)
    with gemmgen.simulate("sm90", sms=2):
        d, first = gemmgen.op(spec)(**tensors)
        again, second = gemmgen.op(spec)(**tensors, pre=pre)
    assert (d.dtype, first.dtype) == (torch.bfloat16, torch.float32)
    assert second is pre and torch.equal(first, pre) and torch.equal(d, again)


def test_only_the_stored_output_may_be_the_residual() -> None:
    base = chains.chained("sm90", DType.F32, [chains.residual(0, DType.F32)])
    spec = base.replace(operands=(*base.operands, PRE), epilogue=(Keep(to="pre"), *base.epilogue))
    tensors, _ = chains.data(spec, {"m": 5, "n": 24, "k": 16}, seed=1)
    c = tensors.pop("c0").contiguous()
    with gemmgen.simulate("sm90", sms=2):
        wanted, _ = gemmgen.op(spec)(**tensors, c0=c)
        with pytest.raises(ValueError, match=r"pre: its memory .* overlaps c0"):
            gemmgen.op(spec)(**tensors, c0=c, pre=c)
        with pytest.raises(ValueError, match=r"d: its memory .* overlaps pre"):
            gemmgen.op(spec)(**tensors, c0=c, d=wanted, pre=wanted)
        gemmgen.op(spec)(**tensors, c0=c, d=c)
    assert torch.equal(c, wanted)


def test_compilers_see_every_output() -> None:
    spec = with_pre(chains.BASES["sm90"](DType.BF16))
    tensors, _ = chains.data(spec, {"m": 5, "n": 24, "k": 16}, seed=1)
    op = gemmgen.op(spec)
    inputs = [tensors[name] for name in op.inputs]
    with gemmgen.simulate("sm90", sms=2):
        opcheck(op._returning, *inputs)
        opcheck(op._writing, *inputs, torch.zeros(5, 24).bfloat16(), torch.zeros(5, 24))
        compiled = torch.compile(lambda **given: op(**given), fullgraph=True, backend="aot_eager")
        for got, wanted in zip(compiled(**tensors), op(**tensors), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("arch", chains.BASES)
def test_products_with_an_epilogue_keep(arch: str) -> None:
    """``fuse`` returns the stored output first as well, and only that one may be the residual."""
    c, d, pre = (Operand(name=name, dtype=DType.F16, box=("m", "n")) for name in ("c", "d", "pre"))
    steps = (Residual(matrix="c"), Keep(to="pre"), Activation(function="relu"), Cast(to=DType.F16), Store(to="d"))
    run = gemmgen.fuse("bf16_gemm_nt", Epilogue(name="both", operands=(c, pre, d), steps=steps))
    a, b = exact_factor(9, 40, torch.bfloat16, 1), exact_factor(72, 40, torch.bfloat16, 2)
    addend = torch.randint(-9, 9, (9, 72)).half()
    sums = (a.float() @ b.float().T + addend).half()
    with gemmgen.simulate(arch, sms=2):
        with pytest.raises(ValueError, match=r"pre: its memory .* overlaps c"):
            run(a, b, c=addend, pre=addend)
        found, kept = run(a, b, c=addend, d=addend)
    assert found is addend and torch.equal(kept, sums) and torch.equal(found, sums.relu())
