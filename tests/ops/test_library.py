"""torch.library: schemas, fake kernels and compilers (P12, P28, P29, P30), with the simulator as the device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from graphs import graphs_of, of_rows
from opchecks import opcheck
from problems import bf16_problem, fp8_problem, whole_numbers

import gemmgen
from gemmgen import catalog, ops
from gemmgen.ops import library

OUT_FORMS = {"fp8_gemm_nt_out": library.fp8_gemm_nt_out, "bf16_gemm_nt_out": library.bf16_gemm_nt_out}
FORMS = {"fp8_gemm_nt": library.fp8_gemm_nt, "bf16_gemm_nt": library.bf16_gemm_nt, **OUT_FORMS}


@pytest.mark.parametrize("name", FORMS)
def test_only_outputs_are_mutated_and_nothing_returned_aliases(name: str) -> None:
    schema = FORMS[name]._schema
    mutated = [each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    assert mutated == (["d"] if name in OUT_FORMS else [])
    assert len(schema.returns) == (0 if name in OUT_FORMS else 1)
    assert all(each.alias_info is None for each in schema.returns)


def test_the_namespace_is_ours() -> None:
    assert all(str(form).startswith("gemmgen.") for form in FORMS.values())
    assert not hasattr(torch.ops, "deep_gemm") or not list(torch.ops.deep_gemm)


def test_importing_loads_neither_torch_nor_cuda() -> None:
    code = (
        "import sys, gemmgen, gemmgen.catalog; from gemmgen import KernelSpec, simulate\n"
        "assert 'torch' not in sys.modules and not any(name.startswith('cuda.bindings') for name in sys.modules)\n"
        "import gemmgen.ops, torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'op' in dir(gemmgen) and callable(gemmgen.op)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'gemm'"):
        gemmgen.gemm  # noqa: B018


# ------------------------------------------------------------------------------------------------ meta and fake


def meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def meta_fp8(m: int, n: int, k: int) -> tuple[Any, Any]:
    e4m3, blocks = torch.float8_e4m3fn, -(-k // 128)
    return (
        (meta(e4m3, m, k), meta(torch.float32, m, blocks)),
        (meta(e4m3, n, k), meta(torch.float32, -(-n // 128), blocks)),
    )


def test_sizes_whose_product_passes_2_to_the_31() -> None:
    """P12: sizes and checks are 64-bit."""
    d = ops.fp8_gemm_nt(*meta_fp8(525056, 4096, 7168))
    assert d.shape == (525056, 4096) and d.numel() > 2**31 and d.dtype == torch.bfloat16
    wide = ops.bf16_gemm_nt(meta(torch.bfloat16, 300032, 7168), meta(torch.bfloat16, 129280, 7168))
    assert wide.shape == (300032, 129280)
    with pytest.raises(ValueError, match=r"^d: m is 525057, but m of a is 525056"):
        ops.fp8_gemm_nt(*meta_fp8(525056, 4096, 7168), meta(torch.bfloat16, 525057, 4096))


@pytest.mark.parametrize(("m", "n"), [(0, 16), (8, 0), (0, 0)])
def test_empty_outputs_in_every_mode(m: int, n: int) -> None:
    """P11, also through the fake kernel; nothing is simulated, so no target is asked for."""
    assert ops.fp8_gemm_nt(*meta_fp8(m, n, 256)).shape == (m, n)
    assert ops.fp8_gemm_nt(*fp8_problem(m, n, 256).pairs).shape == (m, n)
    d = torch.ones(m, n, dtype=torch.bfloat16)
    assert ops.bf16_gemm_nt(*bf16_problem(m, n, 64), d) is d


def test_fake_outputs_equal_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    problem = fp8_problem(8, 24, 256)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (problem.a, problem.sfa, problem.b, problem.sfb)]
        fake = ops.fp8_gemm_nt((fakes[0], fakes[1]), (fakes[2], fakes[3]), out_dtype=torch.float32)
    assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (
        (8, 24),
        (24, 1),
        torch.float32,
        torch.device("cpu"),
    )


# ------------------------------------------------------------------------------------------------ compilers


def test_no_graph_break_and_no_guard_on_m() -> None:
    """P29: one graph serves every M, for each form of call."""
    problem = fp8_problem(9, 256, 320)

    def functional(a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
        return ops.fp8_gemm_nt((a, sfa), (b, sfb)) + 1

    targets, count = graphs_of(functional, of_rows(problem.a, problem.sfa, problem.b, problem.sfb))
    assert count == 1 and library.fp8_gemm_nt in targets

    def writing(a: torch.Tensor, d: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.bf16_gemm_nn(a, b, d, d)

    a, b = bf16_problem(9, 256, 64)
    given = of_rows(a, torch.zeros(9, 256, dtype=torch.bfloat16), b.T.contiguous())
    targets, count = graphs_of(writing, given)
    assert count == 1 and library.bf16_gemm_nt_out in targets


def test_specs_are_traceable_too() -> None:
    function = gemmgen.op(catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1)))

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(a=a, b=b) * 2

    _, count = graphs_of(call, of_rows(*bf16_problem(9, 256, 64)))
    assert count == 1


def test_a_gradient_is_refused_while_tracing() -> None:
    a, b = bf16_problem(8, 16, 64)
    weight = torch.nn.Parameter(b)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: ops.bf16_gemm_nt(a, b), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"b: requires_grad is True, but this operator has no backward"):
        compiled(a, weight)
    with torch.no_grad(), gemmgen.simulate("sm90"):
        assert torch.equal(compiled(a, weight), ops.bf16_gemm_nt(a, weight))


def test_lazily_negated_tensors_go_through_the_dispatcher() -> None:
    a, b = bf16_problem(8, 16, 64)
    assert torch._neg_view(b).is_neg()
    with gemmgen.simulate("sm90"):
        assert torch.equal(ops.bf16_gemm_nt(a, torch._neg_view(b)), -ops.bf16_gemm_nt(a, b))


def test_autocast_touches_nothing() -> None:
    """P30: under autocast the operands keep their types."""
    problem = fp8_problem(8, 16, 256)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode, torch.autocast("cpu", torch.bfloat16):
        fakes = [mode.from_tensor(each) for each in (problem.a, problem.sfa, problem.b, problem.sfb)]
        assert (
            ops.fp8_gemm_nt((fakes[0], fakes[1]), (fakes[2], fakes[3]), out_dtype=torch.float32).dtype == torch.float32
        )


# ------------------------------------------------------------------------------------------------ opcheck


@pytest.fixture
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm90", sms=1):
        yield


@pytest.mark.usefixtures("simulator")
def test_opcheck_fp8() -> None:
    p = fp8_problem(2, 16, 128)
    opcheck(library.fp8_gemm_nt, p.a, p.sfa, p.b, p.sfb, None, torch.bfloat16)


@pytest.mark.usefixtures("simulator")
def test_opcheck_fp8_out() -> None:
    p = fp8_problem(2, 16, 128)
    c = whole_numbers(2, 16, torch.float32)
    opcheck(library.fp8_gemm_nt_out, p.a, p.sfa, p.b, p.sfb, c, torch.zeros(2, 16))


@pytest.mark.usefixtures("simulator")
def test_opcheck_bf16() -> None:
    opcheck(library.bf16_gemm_nt, *bf16_problem(2, 16, 64), None, torch.float32)


@pytest.mark.usefixtures("simulator")
def test_opcheck_bf16_out() -> None:
    opcheck(library.bf16_gemm_nt_out, *bf16_problem(2, 16, 64), None, torch.zeros(2, 16))


@pytest.mark.usefixtures("simulator")
def test_opcheck_of_a_spec() -> None:
    function = gemmgen.op(catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1)))
    opcheck(function._returning, *bf16_problem(2, 16, 64))
    opcheck(function._writing, *bf16_problem(2, 16, 64), torch.zeros(2, 16, dtype=torch.bfloat16))


def test_transforms_of_functions_get_no_gradient_of_zeros() -> None:
    """They hide what asks for one behind wrappers; zeros would be taken for a result."""
    a, w = torch.randn(8, 32).bfloat16(), torch.randn(16, 32).bfloat16()

    def total(a: torch.Tensor) -> torch.Tensor:
        return ops.bf16_gemm_nt(a, w).float().sum()

    with gemmgen.simulate("sm90", sms=2):
        with pytest.raises(RuntimeError, match="ask for a derivative, but this operator has none"):
            torch.func.grad(total)(a)
        with pytest.raises(RuntimeError, match="ask for a derivative, but this operator has none"):
            torch.func.jvp(total, (a,), (a,))
        assert torch.equal(
            torch.vmap(lambda a: ops.bf16_gemm_nt(a, w))(torch.stack([a, -a]))[1], -ops.bf16_gemm_nt(a, w)
        )
