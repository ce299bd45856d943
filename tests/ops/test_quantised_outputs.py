"""Outputs quantised in the epilogue: the bits of the stand-alone quantiser of the fp32 result, no byte beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import chains
import pytest
import torch

import gemmgen
from gemmgen.ir import Bias, DType, Gate, KernelSpec, Operand, Quantise
from gemmgen.ops import quantise
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.runtime.arguments import expected_shape

Cast = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
TENSOR_SCALE = Operand(name="tensor_scale", dtype=DType.F32, box=(), on_device=True)
FILL = 0xEE


@dataclass(frozen=True)
class Form:
    """A narrow output with its scales, and the quantiser that it must agree with."""

    dtype: DType
    scales: Operand
    cast: Cast
    narrow: bool = False

    @property
    def wide(self) -> bool:
        """Whether a scale of the whole tensor belongs to it."""
        return self.scales.dtype in (DType.UE4M3, DType.UE4M3X4)


def scales(dtype: DType, columns: int, major: str | None = None) -> Operand:
    return Operand(name="d_sf", dtype=dtype, box=("m", f"n/{columns}"), major=major)


FORMS = {
    "mxfp8": Form(DType.E4M3, scales(DType.UE8M0, 32), quantise.cast_to_mxfp8),
    "mxfp8 in words": Form(DType.E4M3, scales(DType.UE8M0X4, 128, "m"), quantise.cast_to_mxfp8),
    "fp8 by row": Form(
        DType.E4M3, scales(DType.F32, 128), lambda x: quantise.per_token_cast_to_fp8(x, False, 128), narrow=True
    ),
    "fp8 by column": Form(
        DType.E4M3, scales(DType.F32, 128, "m"), lambda x: quantise.per_token_cast_to_fp8(x, False, 128), narrow=True
    ),
    "mxfp4": Form(DType.E2M1, scales(DType.UE8M0, 32), quantise.cast_to_mxfp4),
    "mxfp4 in words": Form(DType.E2M1, scales(DType.UE8M0X4, 128, "m"), quantise.cast_to_mxfp4),
    "nvfp4": Form(
        DType.E2M1, scales(DType.UE4M3, 16), lambda x: quantise.cast_to_nvfp4(x, quantise.nvfp4_tensor_scale(x))[:2]
    ),
    "nvfp4 in words": Form(
        DType.E2M1,
        scales(DType.UE4M3X4, 64, "m"),
        lambda x: quantise.cast_to_nvfp4(x, quantise.nvfp4_tensor_scale(x))[:2],
    ),
}
CASES = [
    (arch, name)
    for arch in chains.BASES
    for name, form in FORMS.items()
    if not (arch == "sm90" and form.dtype == DType.E2M1) and not (arch == "sm120" and form.narrow)
]
"""sm90 rounds to no 4-bit type; warps of sm120's tiles hold fewer than 128 columns."""


def quantised(base: KernelSpec, form: Form, *, staged: bool = True) -> KernelSpec:
    """The kernel with a bias and a narrow output instead of its cast and store."""
    bias = Operand(name="bias", dtype=DType.F32, box=("n",))
    extra = (bias, TENSOR_SCALE) if form.wide else (bias,)
    last = Quantise(
        to="d",
        scales="d_sf",
        tensor_scale="tensor_scale" if form.wide else None,
        through="cd" if staged else None,
    )
    d = Operand(name="d", dtype=form.dtype, box=("m", "n"))
    rings = base.rings if staged else tuple(each for each in base.rings if each.turns != "store")
    return base.replace(
        name="quantised",
        operands=(*base.operands[:-1], *extra, d, form.scales),
        rings=rings,
        epilogue=(Bias(vector="bias"), last),
    )


def filled(operand: Operand, sizes: dict[str, int]) -> torch.Tensor:
    """An output with bytes of a known value in and around it, rows (or columns) 32 bytes further apart than need be."""
    rows, columns = expected_shape(operand, sizes)
    dtype = TORCH_DTYPES[operand.dtype]
    size = torch.empty(0, dtype=dtype).element_size()
    inner, outer = (rows, columns) if operand.inner == "m" else (columns, rows)
    pitch = (-(-inner * size // 16) * 16 + 32) // size
    view = torch.full((outer, pitch * size), FILL, dtype=torch.uint8).view(dtype)[:, :inner]
    return view.T if operand.inner == "m" else view


def beside(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a view's memory that belong to no element of it."""
    wide = tensor.T if tensor.stride(0) == 1 and tensor.shape[1] > 1 else tensor
    size = tensor.element_size()
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).view(wide.shape[0], -1)
    return memory[:, wide.shape[1] * size :]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def packed(codes: torch.Tensor, form: Form) -> torch.Tensor:
    """Scale bytes as the operand holds them: four a word, missing ones 0."""
    if form.scales.dtype.scales == 1:
        return as_bytes(codes)
    rows, count = codes.shape
    room = torch.zeros(rows, -(-count // 4) * 4, dtype=torch.uint8)
    room[:, :count] = as_bytes(codes)
    return room


def data(sizes: dict[str, int], special: bool) -> dict[str, torch.Tensor]:
    """Rows of very unlike size; with ``special`` also zeros, Inf, NaN, and numbers near both ends of the range."""
    generator = torch.Generator().manual_seed(sizes["m"])
    powers = torch.exp2(torch.randint(-9, 9, (sizes["n"], 1), generator=generator).float())
    a = torch.randn(sizes["m"], sizes["k"], generator=generator).bfloat16()
    b = (torch.randn(sizes["n"], sizes["k"], generator=generator) * powers).bfloat16()
    bias = torch.randn(sizes["n"], generator=generator)
    if special:
        bias.zero_()
        for row, value in enumerate((0.0, torch.inf, torch.nan)):
            a[row] = value
        a[3] *= 2.0**-120
        a[4] *= 2.0**-140
        a[5] *= 2.0**115
    return {"a": a, "b": b, "bias": bias}


def gated(spec: KernelSpec) -> KernelSpec:
    """With SwiGLU behind the bias: outputs have half of the columns."""
    written, (bias, *rest) = spec.outputs, spec.epilogue
    operands = tuple(chains.halved(each) if each in written else each for each in spec.operands)
    return spec.replace(operands=operands, epilogue=(bias, Gate(), *rest))


def plain_result(arch: str, inputs: dict[str, torch.Tensor], with_gate: bool = False) -> torch.Tensor:
    """The same kernel's sums with their bias in fp32: that of another tile may round a gated value otherwise."""
    base = (WIDEST if with_gate else WIDE)[arch](DType.F32)
    spec = base.replace(
        operands=(*base.operands[:-1], Operand(name="bias", dtype=DType.F32, box=("n",)), base.operands[-1]),
        epilogue=(Bias(vector="bias"), *base.epilogue),
    )
    with gemmgen.simulate(arch, sms=2):
        return gemmgen.op(gated(spec) if with_gate else spec)(**inputs)


WIDE: dict[str, Callable[[DType], KernelSpec]] = {
    "sm90": lambda d: chains.dense.bf16_gemm("nt", chains.dense.Shape(64, 128, groups=1), d),
    "sm100": lambda d: chains.dense_sm100.bf16_gemm("nt", chains.dense_sm100.PairShape(128), d),
    "sm120": lambda d: chains.dense_sm120.bf16_gemm("nt", chains.dense_sm120.WarpShape(64, 128), d),
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("arch", "name"), CASES)
def test_the_bits_of_the_quantiser(arch: str, name: str, special: bool) -> None:
    form = FORMS[name]
    sizes = {"m": 70, "n": 160 if special else 272 if form.dtype == DType.E4M3 else 288, "k": 40}
    inputs = data(sizes, special and not form.wide)  # one scale of a whole tensor cannot serve Inf and numbers
    expected = plain_result(arch, inputs)
    codes, wanted = form.cast(expected)
    spec = quantised(WIDE[arch](DType.BF16), form)
    outputs = {each.name: filled(each, sizes) for each in spec.outputs}
    extra = {"tensor_scale": quantise.nvfp4_tensor_scale(expected)} if form.wide else {}
    with gemmgen.simulate(arch, schedule="random", seed=3, sms=2):
        gemmgen.op(spec)(**inputs, **extra, **outputs)
    assert torch.equal(as_bytes(outputs["d"]), as_bytes(codes))
    assert torch.equal(as_bytes(outputs["d_sf"]).view(sizes["m"], -1), packed(wanted, form))
    for output in outputs.values():
        assert bool((beside(output) == FILL).all())


WIDEST: dict[str, Callable[[DType], KernelSpec]] = {
    "sm90": lambda d: chains.dense.bf16_gemm("nt", chains.dense.Shape(64, 256, groups=1), d),
    "sm100": lambda d: chains.dense_sm100.bf16_gemm("nt", chains.dense_sm100.PairShape(256), d),
    "sm120": WIDE["sm120"],
}


GATED_FORMS = ("mxfp8", "mxfp8 in words", "fp8 by row", "nvfp4")


@pytest.mark.parametrize(("arch", "name"), [case for case in CASES if case[1] in GATED_FORMS])
def test_gated_values_are_quantised_likewise(arch: str, name: str) -> None:
    """SwiGLU in fp32, then the quantiser; the last of the blocks of 8-bit numbers is cut."""
    form, staged = FORMS[name], name != "mxfp8"
    sizes = {"m": 67, "n": 2 * (272 if form.dtype == DType.E4M3 else 288), "k": 24}
    inputs = data(sizes, False)
    expected = plain_result(arch, inputs, with_gate=True)
    codes, wanted = form.cast(expected)
    spec = gated(quantised(WIDEST[arch](DType.BF16), form, staged=staged))
    outputs = {each.name: filled(each, sizes) for each in spec.outputs}
    extra = {"tensor_scale": quantise.nvfp4_tensor_scale(expected)} if form.wide else {}
    with gemmgen.simulate(arch, schedule="random", seed=5, sms=2):
        gemmgen.op(spec)(**inputs, **extra, **outputs)
    assert torch.equal(as_bytes(outputs["d"]), as_bytes(codes))
    assert torch.equal(as_bytes(outputs["d_sf"]).view(sizes["m"], -1), packed(wanted, form))
    for output in outputs.values():
        assert bool((beside(output) == FILL).all())


@pytest.mark.parametrize("arch", chains.BASES)
def test_stores_from_registers(arch: str) -> None:
    """Rows that TMA cannot store: 200 bytes, at an odd pitch."""
    form, sizes = FORMS["mxfp8"], {"m": 67, "n": 200, "k": 40}
    inputs = data(sizes, False)
    codes, wanted = form.cast(plain_result(arch, inputs))
    spec = quantised(WIDE[arch](DType.BF16), form, staged=False)
    d = torch.full((67, 201), FILL, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with gemmgen.simulate(arch, schedule="random", seed=4, sms=2):
        _, scale = gemmgen.op(spec)(**inputs, d=d[:, :200])
    assert torch.equal(as_bytes(d[:, :200]), as_bytes(codes)) and torch.equal(as_bytes(scale), as_bytes(wanted))
    assert bool((as_bytes(d)[:, 200] == FILL).all())


def test_a_call_returns_every_output() -> None:
    spec = quantised(WIDE["sm90"](DType.BF16), FORMS["mxfp8 in words"])
    inputs = data({"m": 6, "n": 144, "k": 16}, False)
    with gemmgen.simulate("sm90"):
        d, d_sf = gemmgen.op(spec)(**inputs)
        given = torch.empty_like(d)
        again, scales_again = gemmgen.op(spec)(**inputs, d=given)
    assert (d.shape, d_sf.shape, d_sf.stride()) == ((6, 144), (6, 2), (1, 8))
    assert again is given and torch.equal(as_bytes(again), as_bytes(d)) and torch.equal(scales_again, d_sf)
    assert (d.dtype, d_sf.dtype) == (torch.float8_e4m3fn, torch.int32)


def test_outputs_may_not_meet() -> None:
    spec = quantised(WIDE["sm90"](DType.BF16), FORMS["mxfp8"])
    inputs = data({"m": 4, "n": 64, "k": 16}, False)
    memory = torch.zeros(4, 80, dtype=torch.uint8)
    d, d_sf = memory[:, :64].view(torch.float8_e4m3fn), memory[:, 63:65].view(torch.float8_e8m0fnu)
    with gemmgen.simulate("sm90"), pytest.raises(ValueError, match="overlaps d_sf"):
        gemmgen.op(spec)(**inputs, d=d, d_sf=d_sf)
