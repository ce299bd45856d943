"""The layout transforms of scales under torch.library: the same result as a plain call, one node, nothing aliased."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graphs import ROWS, graphs_of
from opchecks import opcheck
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmgen
from gemmgen import ops
from gemmgen.ops import library, quantise

FORMS = torch.ops.gemmgen
NAMES = (
    "get_mn_major_tma_aligned_tensor",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "transform_sf_into_required_layout",
)


def powers(*shape: int, seed: int = 0) -> torch.Tensor:
    codes = torch.randint(1, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return quantise.decode_ue8m0(codes)


def words(*shape: int) -> torch.Tensor:
    return quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(powers(*shape))


PSUM = torch.tensor([5, 20], dtype=torch.int32)
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "aligned": (NAMES[0], (powers(5, 3),), {}),
    "aligned already": (NAMES[0], (quantise.get_mn_major_tma_aligned_tensor(powers(2, 5, 3)),), {}),
    "packed": (NAMES[1], (powers(3, 9, 6),), {}),
    "packed bytes": (NAMES[1], (powers(9, 6).to(torch.float8_e8m0fnu),), {}),
    "packed psum": (NAMES[1], (powers(20, 6), PSUM), {"mk_alignment": 8}),
    "sm90 rows": (NAMES[2], (powers(9, 3), 9, 300, [1, 128]), {"arch": "sm90"}),
    "sm90 blocks": (NAMES[2], (powers(2, 3), 200, 300, [128, 128]), {"arch": "sm90"}),
    "fp32 rows": (NAMES[2], (powers(9, 10), 9, 300, [1, 32]), {"arch": "sm100"}),
    "fp32 blocks of groups": (NAMES[2], (powers(4, 2, 3), 200, 300, [1, 128, 128], 4, False), {"arch": "sm100"}),
    "words already": (NAMES[2], (words(9, 10), 9, 300, [1, 32]), {"arch": "sm120"}),
    "words in rows": (NAMES[2], (words(9, 10).contiguous(), 9, 300, [1, 32]), {"arch": "sm100"}),
    "psum": (NAMES[2], (powers(20, 4), 20, 512, [1, 128], None, None, False, PSUM), {"arch": "sm100"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    form, arguments, options = CALLS[name]
    opcheck(getattr(FORMS, form).default, *arguments, **options)


@pytest.mark.parametrize("name", CALLS)
def test_the_operator_gives_the_bits_and_strides_of_a_plain_call_in_memory_of_its_own(name: str) -> None:
    form, arguments, options = CALLS[name]
    plain, result = getattr(ops, form)(*arguments, **options), getattr(FORMS, form)(*arguments, **options)
    assert torch.equal(plain.view(torch.int32), result.view(torch.int32))
    assert (result.dtype, result.stride()) == (plain.dtype, plain.stride())
    assert not any(torch._C._is_alias_of(result, each) for each in arguments if isinstance(each, torch.Tensor))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_mutated_and_nothing_returned_aliases(name: str) -> None:
    schema = getattr(FORMS, name).default._schema
    assert all(each.alias_info is None for each in (*schema.arguments, *schema.returns))


def test_plain_calls_return_what_lies_right_already_itself() -> None:
    laid = words(9, 10)
    assert ops.transform_sf_into_required_layout(laid, 9, 300, (1, 32), arch="sm100") is laid
    columns = ops.get_mn_major_tma_aligned_tensor(powers(9, 3))
    assert ops.get_mn_major_tma_aligned_tensor(columns) is columns


@pytest.mark.parametrize("name", NAMES)
def test_users_read_the_documentation_and_signature_of_the_plain_function(name: str) -> None:
    operator, plain = getattr(ops, name), getattr(quantise, name)
    assert operator.__doc__ == plain.__doc__
    own, wanted = inspect.signature(operator, follow_wrapped=False).parameters, inspect.signature(plain).parameters
    assert [(each.name, each.kind, each.default) for each in own.values()] == [
        (each.name, each.kind, each.default) for each in wanted.values()
    ]


# ------------------------------------------------------------------------------------------------ alignment


ENDS = torch.tensor([10, 74, 100], dtype=torch.int32)
"""Groups whose rows depend on the alignment: 16, 32 and 64 have others than 128, the default."""
ALIGNED: dict[str, Callable[..., torch.Tensor]] = {
    "packed": lambda sf, ends, **alignment: ops.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, ends, **alignment),
    "transformed": lambda sf, ends, **alignment: ops.transform_sf_into_required_layout(
        sf, *sf.shape[:1], 32 * sf.shape[1], (1, 32), psum_layout=ends, arch="sm100", **alignment
    ),
    "k-grouped": lambda sf, ends, mk_alignment=None: ops.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        sf, ends, None, 16, mk_alignment, True
    ),
}


@pytest.fixture
def aligned() -> Iterator[Callable[[int], None]]:
    before = ops.get_mk_alignment_for_contiguous_layout()
    yield ops.set_mk_alignment_for_contiguous_layout
    ops.set_mk_alignment_for_contiguous_layout(before)


@pytest.mark.parametrize("name", ALIGNED)
def test_groups_start_where_products_have_them_unless_a_call_says_otherwise(
    name: str, aligned: Callable[[int], None]
) -> None:
    move, sf = ALIGNED[name], powers(100, 6)
    stated = {alignment: move(sf, ENDS, mk_alignment=alignment) for alignment in (16, 64, 128)}
    assert not torch.equal(stated[16], stated[64]) and not torch.equal(stated[64], stated[128])
    for alignment, wanted in stated.items():
        aligned(alignment)
        assert torch.equal(move(sf, ENDS), wanted)
        assert torch.equal(move(sf, ENDS, mk_alignment=64), stated[64])


@pytest.mark.parametrize("name", ALIGNED)
def test_compiled_calls_keep_the_alignment_they_were_traced_with(name: str, aligned: Callable[[int], None]) -> None:
    """Another one is another graph, or a number of the same; a graph that runs later does not read it again."""
    move, sf, graphs = ALIGNED[name], powers(100, 6), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append((graph, inputs))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda sf, ends: move(sf, ends), fullgraph=True, backend=backend)
    for alignment in (64, 16, 128):
        aligned(alignment)
        assert torch.equal(compiled(sf, ENDS), move(sf, ENDS, mk_alignment=alignment))
    graph, inputs = graphs[0]
    assert torch.equal(graph.forward(*inputs)[0], move(sf, ENDS, mk_alignment=64))


# ------------------------------------------------------------------------------------------------ compilers


def test_one_node_no_graph_break_and_no_guard_on_m() -> None:
    def packed(sf: torch.Tensor) -> torch.Tensor:
        return ops.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)

    def aligned(sf: torch.Tensor) -> torch.Tensor:
        return ops.get_mn_major_tma_aligned_tensor(sf)

    def transformed(x: torch.Tensor, sf: torch.Tensor) -> torch.Tensor:
        m, k = x.shape
        return ops.transform_sf_into_required_layout(sf, m, k, (1, 32), arch="sm100")

    scales = [(powers(m, 6),) for m in ROWS]
    only = {FORMS.get_mn_major_tma_aligned_packed_ue8m0_tensor.default}
    assert graphs_of(packed, scales, run=True) == (only, 1)
    assert graphs_of(aligned, scales, run=True) == ({FORMS.get_mn_major_tma_aligned_tensor.default}, 1)
    given = ((torch.zeros(len(sf), 192), sf) for (sf,) in scales)
    targets, count = graphs_of(transformed, given, run=True)
    assert count == 1 and FORMS.transform_sf_into_required_layout.default in targets


def test_a_compiled_function_gives_the_same_bits_and_strides() -> None:
    def prepared(sf: torch.Tensor) -> torch.Tensor:
        return ops.transform_sf_into_required_layout(sf * 2, 9, 192, (1, 32))

    sf = powers(9, 6) / 4
    with gemmgen.simulate("sm100"):
        plain, compiled = prepared(sf), torch.compile(prepared, fullgraph=True, backend="aot_eager")(sf)
    assert torch.equal(plain, compiled) and plain.stride() == compiled.stride()


def test_the_architecture_is_the_one_that_is_simulated_while_tracing() -> None:
    def prepared(sf: torch.Tensor) -> torch.Tensor:
        return ops.transform_sf_into_required_layout(sf, 9, 384, (1, 128))

    for arch, dtype in (("sm90", torch.float32), ("sm100", torch.int32)):
        torch._dynamo.reset()
        with gemmgen.simulate(arch):
            assert torch.compile(prepared, fullgraph=True, backend="aot_eager")(powers(9, 3)).dtype == dtype


def test_quantise_prepare_and_multiply_in_one_graph() -> None:
    def linear(x: torch.Tensor, w: torch.Tensor, sfw: torch.Tensor) -> torch.Tensor:
        data, sf = ops.per_token_cast_to_fp8(x, True)
        laid = ops.transform_sf_into_required_layout(sf, *x.shape, (1, 128))
        return ops.fp8_gemm_nt((data, laid), (w, sfw))

    x, (w, sfw) = torch.randn(9, 256), ops.per_token_cast_to_fp8(torch.randn(24, 256), True)
    with gemmgen.simulate("sm100"):
        sfw = ops.transform_sf_into_required_layout(sfw, 24, 256, (1, 128))
        compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x, w, sfw), linear(x, w, sfw))


# ------------------------------------------------------------------------------------------------ fake and meta


@pytest.mark.parametrize("name", CALLS)
def test_fake_results_equal_real_ones(name: str) -> None:
    form, arguments, options = CALLS[name]
    real = getattr(FORMS, form)(*arguments, **options)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in arguments]
        fake = getattr(ops, form)(*fakes, **options)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_refusals_come_before_anything_runs_also_when_traced() -> None:
    with FakeTensorMode() as mode, pytest.raises(ValueError, match=r"^sf: shape is \(9, 3\).*makes \(9, 2\)"):
        ops.transform_sf_into_required_layout(mode.from_tensor(powers(9, 3)), 9, 256, (1, 128), arch="sm100")
    with pytest.raises(ValueError, match=r"^arch: is missing and sf is on cpu"):
        FORMS.transform_sf_into_required_layout(powers(9, 2), 9, 256, [1, 128])
    with pytest.raises(TypeError, match=r"^sf: dtype is torch.int32; must be torch.float32"):
        FORMS.get_mn_major_tma_aligned_tensor(torch.ones(2, 2, dtype=torch.int32))


def test_inference_mode_and_parameters() -> None:
    with torch.inference_mode():
        assert ops.get_mn_major_tma_aligned_packed_ue8m0_tensor(powers(9, 6)).stride() == (1, 12)
    parameter = torch.nn.Parameter(powers(9, 6), requires_grad=False)
    assert library.is_plain((parameter,))
    assert torch.equal(ops.get_mn_major_tma_aligned_tensor(parameter), parameter)
