"""``warmup``: the kernels that calls take, compiled and not launched, told apart by the call itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fake_gpu import FakeGpu, install

import gemmgen
from gemmgen import ops
from gemmgen.ops import dispatch, hot_call
from gemmgen.ops.warm_arguments import OPERATORS, call_arguments
from gemmgen.runtime import cache, compiler, nvrtc
from gemmgen.runtime.architectures import SMS, resolve
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.errors import CompileError, DeviceError, UnsupportedArchitecture
from gemmgen.runtime.preparation import preparing

BF16 = torch.bfloat16
MASKED, K_GROUPED = "m_grouped_bf16_gemm_nt_masked", "k_grouped_bf16_gemm_tn_contiguous"


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "_default", None)
    return tmp_path / "kernels"


def needed(op: Any, arch: str, *shapes: tuple[int, int, int], **choices: Any) -> list[str]:
    """What ``warmup`` would compile, without compiling it."""
    from gemmgen.ops.warmup import note_call

    with preparing(resolve(arch)) as preparation:
        for shape in shapes:
            note_call(op, preparation, *shape, choices)
    return [text.entry for text in preparation.texts]


def launched(gpu: FakeGpu, family: str, op: str, shape: tuple[int, int, int], choices: dict[str, Any]) -> list[str]:
    """The kernels that a call launches, layout kernels first."""
    gpu.family, gpu.sms = family, SMS[family]
    arguments = call_arguments(op, family, *shape, choices)
    made = {id(value): real(value) for value in arguments.values()}  # one that is passed twice stays one
    with gemmgen.simulate(family):
        ops.__dict__[op](**{name: made[id(value)] for name, value in arguments.items()})
    return [launch.entry for launch in gpu.launches]


def real(value: Any) -> Any:
    """CPU tensors like meta ones, in pairs too."""
    if isinstance(value, tuple) and all(isinstance(part, torch.Tensor) for part in value):
        return tuple(map(real, value))
    if not isinstance(value, torch.Tensor):
        return value
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(value.shape, value.stride(), strict=True))
    return (
        torch.zeros(size * value.itemsize, dtype=torch.uint8).view(value.dtype).as_strided(value.shape, value.stride())
    )


CHOICES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"head_splits": (64, 32, 64)} if "skip" in name else {}) for name in OPERATORS),
    ("bf16_gemm_nt", {"d": torch.float32, "c": True}),
    ("bf16_gemm_nt", {"bias": BF16, "activation": "silu", "gate": "halves"}),
    ("fp8_gemm_nt", {"scales": "k", "out_dtype": torch.float32}),
    ("fp8_gemm_nt", {"recipe": (1, 1, 128), "c": True}),
    ("fp8_fp4_gemm_nt", {"a": torch.int8, "b": torch.int8, "recipe_a": (1, 32), "recipe_b": (1, 32)}),
    ("tf32_hc_prenorm_gemm", {"num_splits": 3}),
    ("k_grouped_bf16_gemm_tn_contiguous", {"d": BF16, "c": None, "use_psum_layout": True}),
    ("k_grouped_fp8_gemm_nt_contiguous", {"c": torch.float32, "num_groups": 3}),
    ("k_grouped_fp8_gemm_tn_contiguous", {"recipe": (1, 1, 32)}),
    ("fp8_gemm_nt", {"recipe": (1, 128, 128)}),
    ("m_grouped_fp8_gemm_nt_contiguous", {"recipe_a": (1, 128), "recipe_b": (128, 128), "offsets": True}),
]


@pytest.mark.parametrize("family", SMS)
@pytest.mark.parametrize(("op", "choices"), CHOICES)
def test_what_is_prepared_is_what_a_call_launches(
    monkeypatch: pytest.MonkeyPatch, family: str, op: str, choices: dict[str, Any]
) -> None:
    shape = (64, 24, 1024) if "prenorm" in op else (64, 256, 1024)
    with monkeypatch.context() as patch:
        gpu = install(patch)
        try:
            expected = launched(gpu, family, op, shape, choices)
        except UnsupportedArchitecture as error:
            with pytest.raises(UnsupportedArchitecture) as found:
                needed(op, family, shape, **choices)
            assert str(found.value) == str(error)
            return
        finally:
            hot_call.forget()
    assert expected and sorted(needed(op, family, shape, **choices)) == sorted(set(expected))


@pytest.mark.parametrize("family", ["sm100", "sm120"])
@pytest.mark.parametrize("op", ["fp8_fp4_gemm_nt", "fp8_fp4_gemm_nn", "m_grouped_fp8_fp4_gemm_nt_contiguous"])
def test_4_bit_weights_of_any_even_k_are_prepared(family: str, op: str) -> None:
    given = {"recipe_a": (1, 32), "recipe_b": (1, 32)} | ({"num_groups": 3} if "grouped" in op else {})
    assert needed(op, family, (16, 24, 160), **given)


@pytest.mark.parametrize("family", ["sm100", "sm120"])
@pytest.mark.parametrize(
    "form", ["fp8_fp4_gemm_nt", *(f"m_grouped_fp8_fp4_gemm_nt_{of}" for of in ("contiguous", "masked"))]
)
def test_factors_whose_scales_stand_for_other_parts_of_k_are_prepared(
    monkeypatch: pytest.MonkeyPatch, family: str, form: str
) -> None:
    for choices in (
        {"recipe_a": (1, 128), "recipe_b": (1, 32), "b": torch.int8},  # weights as vLLM and SGLang have them
        {"recipe_a": (1, 32), "recipe_b": (128, 128), "b": torch.float8_e4m3fn},  # examples/moe_mlp.py
    ):
        with monkeypatch.context() as patch:
            expected = launched(install(patch), family, form, (256, 128, 512), choices)
            hot_call.forget()
        assert sorted(needed(form, family, (256, 128, 512), **choices)) == sorted(set(expected))
        spans = [f"e4m3x{choices['recipe_a'][1]}", f"x{choices['recipe_b'][1]}_"]  # type: ignore[index]
        assert all(any(span in kernel for kernel in expected) for span in spans)


def test_scales_of_blocks_of_rows_are_laid_out_by_a_kernel_that_is_prepared_too() -> None:
    """As quantised weights have them: fp32, which no tensor core of Blackwell reads."""
    choices = {"recipe_a": (1, 32), "recipe_b": (128, 128)}
    for op in ("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_contiguous_mxfp8out"):
        assert "sm100_pack_ue8m0_128x1" in needed(op, "sm100", (256, 128, 512), **choices)


def test_every_operator_that_is_exported_is_known() -> None:
    assert set(OPERATORS) == {name for name in ops.__all__ if "gemm" in name}
    for product in ("fp8", "bf16"):
        also, name = f"{product}_m_grouped_gemm_nt_masked", f"m_grouped_{product}_gemm_nt_masked"
        assert needed(also, "sm90", (64, 128, 128)) == needed(name, "sm90", (64, 128, 128)) != []


def test_numpys_integers_are_extents_and_counts_too() -> None:
    shape, eight = numpy.array([8, 64, 128]), numpy.int64(8)
    for op, choices in (("bf16_gemm_nt", {}), ("m_grouped_bf16_gemm_nt_masked", {"num_groups": eight})):
        assert needed(op, "sm90", (8, 64, 128), **choices)
    found = [
        ops.warmup("bf16_gemm_nt", [each], arch="sm90", sms=numpy.int32(132)) for each in (shape, (eight, 64, 128))
    ]
    assert found[0] == found[1] == needed("bf16_gemm_nt", "sm90", (8, 64, 128))


def test_kernels_are_compiled_once_and_for_good(cache_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, str]] = []
    shapes = [(1, 64, 128), (8, 64, 128), (4096, 4096, 128)]
    names = ops.warmup(
        "bf16_gemm_nt", shapes, arch="sm90", progress=lambda done, total, name: seen.append((done, total, name))
    )
    assert len(names) == 2 and names == needed("bf16_gemm_nt", "sm90", *shapes)
    assert [each[:2] for each in seen] == [(1, 2), (2, 2)] and sorted(each[2] for each in seen) == sorted(names)
    monkeypatch.setattr(cache, "_default", None)  # as another process
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert ops.warmup(ops.bf16_gemm_nt, shapes, arch="sm_90a", workers=1) == names
    with preparing(resolve("sm90")) as preparation:
        ops.bf16_gemm_nt.__wrapped__(*(torch.empty(rows, 128, dtype=BF16, device="meta") for rows in (8, 64)))  # type: ignore[attr-defined]
    (text,) = preparation.texts
    assert cached_cubin(text.source, "sm90", text.file_name).code


def test_authors_functions_are_prepared_too() -> None:
    from gemmgen.ir import Bias, Cast, DType, Epilogue, Operand, Scale, Store

    operands = (
        Operand(name="alpha", dtype=DType.F32, box=()),
        Operand(name="bias", dtype=DType.F32, box=("n",)),
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
    )
    steps = (Scale(by="alpha"), Bias(vector="bias"), Cast(to=DType.BF16), Store(to="d"))
    chain = Epilogue(name="warm", operands=operands, steps=steps)
    (name,) = needed(gemmgen.fuse("bf16_gemm_nt", chain), "sm90", (64, 64, 64))
    assert name.startswith("sm90_bf16_gemm_nt_warm")
    (name,) = needed(gemmgen.fuse("fp8_gemm_nt", chain), "sm120", (64, 64, 256))
    assert name.startswith("sm120_fp8_gemm_nt_warm")
    spec = gemmgen.catalog.bf16_gemm("nt", gemmgen.catalog.Shape(64, 16, groups=1))
    assert needed(gemmgen.op(spec), "sm90", (1, 1, 1)) == [spec.name]
    with pytest.raises(ValueError, match=r"op: .* is for sm90; warm it up there, not for sm100"):
        needed(gemmgen.op(spec), "sm100", (1, 1, 1))


def test_a_gpu_of_another_size_or_name_may_take_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    spec_for = gemmgen.ops.dense.spec_for

    def asking(operator: str, m: int, n: int, k: int, sms: int, **choices: Any) -> Any:
        asked.append((sms, choices["card"]))
        return spec_for(operator, m, n, k, sms, **choices)

    monkeypatch.setattr(gemmgen.ops.dense, "spec_for", asking)
    monkeypatch.setattr(compiler, "_cached", lambda *_: None)
    ops.warmup("bf16_gemm_nt", [(8, 64, 64)], arch="sm90", sms=66, card="half a GPU")
    assert asked == [(66, "half a GPU")]


def test_empty_problems_need_nothing() -> None:
    assert ops.warmup("fp8_gemm_nt", [(0, 64, 128), (64, 0, 128)], arch="sm90") == []
    assert ops.warmup("fp8_gemm_nt", [], arch="sm90") == []


@pytest.mark.parametrize(
    ("op", "shapes", "choices", "error", "message"),
    [
        ("gemm", [(8, 8, 64)], {}, ValueError, "op: 'gemm' is unknown; use one of fp8_gemm_nt, "),
        (len, [(8, 8, 64)], {}, ValueError, "op: 'len' is unknown"),
        ("bf16_gemm_nt", [(8, 8)], {}, TypeError, r"shapes: \(8, 8\) is no problem; each is three whole numbers"),
        ("bf16_gemm_nt", [(8, 8, 64.0)], {}, TypeError, "each is three whole numbers"),
        ("bf16_gemm_nt", [8, 8, 64], {}, TypeError, "shapes: 8 is no problem"),
        (
            "bf16_gemm_nt",
            [(8, 8, 64)],
            {"sms": 0},
            ValueError,
            "sms: is 0; must be a whole number, 1 or more; leave it",
        ),
        ("bf16_gemm_nt", [(8, 8, 64)], {"sms": -3}, ValueError, "sms: is -3; must be a whole number, 1 or more"),
        ("bf16_gemm_nt", [(8, 8, 64)], {"sms": 1.5}, TypeError, "sms: is 1.5; must be a whole number"),
        (
            MASKED,
            [(8, 8, 64)],
            {"num_groups": -1},
            ValueError,
            "num_groups: is -1; must be a whole number, 0 or more; l",
        ),
        (K_GROUPED, [(8, 8, 64)], {"num_groups": "2"}, TypeError, "num_groups: is '2'; must be a whole number"),
        (
            "fp8_gemm_nt",
            [(8, 8, 128)],
            {"recipe": 128},
            TypeError,
            "recipe: is 128; must be a tuple of 3 whole numbers",
        ),
        ("bf16_gemm_nt", [(8, -8, 64)], {}, ValueError, "has a negative extent"),
        ("bf16_gemm_nt", [(8, 8, 63)], {}, ValueError, "a: row pitch is 63 elements = 126 bytes"),
        ("bf16_gemm_nt", [(8, 8, 64)], {"beta": 1}, TypeError, "beta: unknown choice; bf16_gemm_nt is chosen by"),
        ("bf16_gemm_nt", [(8, 8, 64)], {"activation": "sin"}, ValueError, "activation: 'sin' is unknown"),
        ("bf16_gemm_nt", [(8, 8, 64)], {"d": torch.half}, TypeError, "d: dtype is torch.float16"),
        ("mxfp4_gemm_nt", [(8, 8, 64)], {}, UnsupportedArchitecture, "4-bit numbers are multiplied on"),
        ("fp8_gemm_nt_skip_head_mid", [(8, 8, 128)], {}, TypeError, "head_splits"),
    ],
)
def test_refusals(op: Any, shapes: Any, choices: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ops.warmup(op, shapes, arch="sm90", **choices)


def test_without_a_gpu_an_architecture_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="arch: is None and there is no GPU; name what to compile for"):
        ops.warmup("bf16_gemm_nt", [(8, 8, 64)])
    with pytest.raises(UnsupportedArchitecture, match="'sm80' is not an architecture"):
        ops.warmup("bf16_gemm_nt", [(8, 8, 64)], arch="sm80")


def test_a_kernel_that_does_not_compile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise CompileError("no", log="")

    monkeypatch.setattr(compiler, "_cached", broken)
    with pytest.raises(CompileError):
        ops.warmup("bf16_gemm_nt", [(8, 64, 64), (4096, 4096, 64)], arch="sm90")


def test_meta_calls_outside_still_only_check_shapes() -> None:
    a = torch.empty(8, 64, dtype=BF16, device="meta")
    assert ops.bf16_gemm_nt(a, a).shape == (8, 8)
    with pytest.raises(DeviceError, match="device: meta cannot run"):
        dispatch.current_target(a.device)
