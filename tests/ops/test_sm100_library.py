"""Block-scaled products under torch.library: schemas, fake kernels, compilers and opcheck, on the simulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from graphs import graphs_of, of_rows
from opchecks import opcheck
from problems import whole_numbers
from sm100_problems import fp4, fp8, nvfp4, product
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmgen
from gemmgen import ops
from gemmgen.ops import architecture, library


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm100", sms=1):
        yield


def test_only_outputs_are_mutated_and_nothing_returned_aliases() -> None:
    for form, mutated in ((library.block_scaled_gemm, []), (library.block_scaled_gemm_out, ["d"])):
        arguments = form._schema.arguments
        assert [each.name for each in arguments if each.alias_info and each.alias_info.is_write] == mutated
        assert all(each.alias_info is None for each in form._schema.returns)


def test_fake_outputs_equal_real_ones() -> None:
    real = (*fp4(8, 96).e8m0, *fp4(24, 96).e8m0)
    with FakeTensorMode() as mode:
        a, sfa, b, sfb = map(mode.from_tensor, real)
        d = ops.mxfp4_gemm_nt((a, sfa), (b, sfb), out_dtype=torch.float32)
        with pytest.raises(ValueError, match=r"^sfb: shape is \(24, 2\); one scale per 1 x 32 elements makes"):
            ops.mxfp4_gemm_nt((a, sfa), (b, sfb[:, :2]))
    assert (d.shape, d.stride(), d.dtype) == ((8, 24), (24, 1), torch.float32)


def test_meta_tensors_need_no_gpu_and_sizes_are_64_bit() -> None:
    def meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    a = meta(torch.int8, 525056, 3584), meta(torch.int32, 525056, 56)
    b = meta(torch.int8, 4096, 3584), meta(torch.int32, 4096, 56)
    d = ops.mxfp4_gemm_nt(a, b)
    assert d.shape == (525056, 4096) and d.numel() > 2**31


def test_no_graph_break_and_no_guard_on_m() -> None:
    a, b = fp8(9, 320, (1, 32)), fp8(256, 320, (1, 32))

    def mx(a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
        return ops.fp8_gemm_nt((a, sfa), (b, sfb), recipe=(1, 1, 32)) + 1

    targets, count = graphs_of(mx, of_rows(*a.fp32, *b.fp32))
    assert count == 1 and library.block_scaled_gemm in targets

    def four(a: torch.Tensor, sfa: torch.Tensor, d: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
        return ops.nvfp4_gemm_nt((a, sfa), (b, sfb), d, d, 0.5)

    x, y = nvfp4(9, 64), nvfp4(256, 64)
    scales = [each.codes.view(torch.float8_e4m3fn) for each in (x, y)]
    targets, count = graphs_of(four, of_rows(x.data, scales[0], torch.zeros(9, 256), y.data, scales[1]))
    assert count == 1 and library.block_scaled_gemm_out in targets


def test_a_compiled_function_gives_the_same_bits() -> None:
    a, b = fp4(6, 96, seed=1), fp4(16, 96, seed=2)
    compiled = torch.compile(lambda *t: ops.mxfp4_gemm_nt(t[:2], t[2:]) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*a.fp32, *b.fp32), product(a, b) + 1)


@pytest.mark.parametrize("alpha", [None, 2.0], ids=["mxfp4", "nvfp4"])
def test_opcheck(alpha: float | None) -> None:
    a, b = (fp4(2, 64), fp4(16, 64)) if alpha is None else (nvfp4(2, 64), nvfp4(16, 64))
    recipe = [1, a.gran[1], 1, b.gran[1]]
    opcheck(library.block_scaled_gemm, *a.words, *b.words, None, recipe, [False, False], alpha, torch.bfloat16)


def test_opcheck_out() -> None:
    a, b = fp8(2, 128), fp8(16, 128, (128, 128))
    c = whole_numbers(2, 16, torch.float32)
    arguments = (*a.fp32, *b.fp32, c, [1, 128, 0, 128], [False, False], None, torch.zeros(2, 16))
    opcheck(library.block_scaled_gemm_out, *arguments)


def test_the_device_decides_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {0: (9, 0), 1: (10, 0), 2: (10, 3), 3: (8, 0), 4: (12, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    architecture._family.cache_clear()
    try:
        found = [architecture.family_at(index) for index in range(5)]
        assert found == ["sm90", "sm100", "sm100", None, "sm120"]
        assert architecture.family_at(-1) == "sm100", "what is simulated, for CPU tensors"
        assert architecture.scales_blocks(torch.empty(1)) and not architecture.scales_blocks(None)
        with gemmgen.simulate("sm90"):
            assert not architecture.scales_blocks(torch.empty(1))
    finally:
        architecture._family.cache_clear()
