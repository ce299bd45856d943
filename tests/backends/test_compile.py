"""P08, P25, P27: NVRTC compiles what we emit to binaries that spill nothing, without toolkit, driver or GPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gemmgen import catalog
from gemmgen.backends import emit, lower
from gemmgen.catalog import dense_sm100, dense_sm120, fused
from gemmgen.catalog.further import further_bf16, further_fp8
from gemmgen.catalog.grouped_sm100 import row_groups_sm100
from gemmgen.ir import (
    Activation,
    Apply,
    Bias,
    Cast,
    DType,
    Epilogue,
    Gate,
    Keep,
    KernelSpec,
    OneTile,
    Operand,
    Reduce,
    Residual,
    Scale,
    SoftCap,
    Store,
)
from gemmgen.runtime.nvrtc import compile_cubin

NAMES = (
    "sm90_fp8_gemm_nt_bf16_64x16",
    "sm90_fp8_gemm_nt_bf16_64x64_x2",
    "sm90_fp8_gemm_nt_bf16_128x128",
    "sm90_fp8_gemm_nt_bf16_128x176",
    "sm90_fp8_gemm_nt_bf16_128x192_cut3",
    "sm90_fp8_gemm_nt_bf16_128x256",
    "sm90_fp8_gemm_nt_bf16_256x128",
    "sm90_fp8_gemm_nt_bf16_256x128_c21",
    "sm90_fp8_gemm_nt_f32_c_128x128",
    "sm90_fp8_gemm_nt_ksf_bf16_direct_64x128",
    "sm90_fp8_gemm_nt_1d1d_bf16_128x128",
    "sm90_fp8_gemm_nt_1d1d_ksf_f32_c_direct_64x128",
    "sm90_bf16_gemm_nt_bf16_64x16",
    "sm90_bf16_gemm_nt_bf16_128x256_c21",
    "sm90_bf16_gemm_nt_bf16_192x176",
    "sm90_bf16_gemm_nt_bf16_256x192",
    "sm90_bf16_gemm_nn_bf16_128x256",
    "sm90_bf16_gemm_tn_f32_c_128x128",
    "sm90_bf16_gemm_tt_bf16_c_direct_64x128",
)
SMALL = catalog.Shape(64, 64, groups=1)
BF16 = catalog.bf16_gemm("nt", catalog.Shape(128, 128))
VECTORS = (
    Operand(name="alpha", dtype=DType.F32, box=()),
    Operand(name="rows", dtype=DType.F32, box=("m",)),
    Operand(name="bias", dtype=DType.BF16, box=("n",)),
    Operand(name="c", dtype=DType.BF16, box=("m", "n")),
    Operand(name="beta", dtype=DType.F32, box=()),
    Operand(name="gain", dtype=DType.F32, box=(), on_device=True),
    Operand(name="gate", dtype=DType.BF16, box=("m", "n")),
    Operand(name="pre", dtype=DType.F16, box=("m", "n")),
)
REDUCED = (
    Operand(name="columns", dtype=DType.F32, box=("n",)),
    Operand(name="sums", dtype=DType.F32, box=("m",)),
    Operand(name="largest", dtype=DType.F32, box=(), on_device=True),
)


def gated(spec: KernelSpec, layout: str = "halves") -> KernelSpec:
    """The kernel with GeGLU of bias and sums before its cast."""
    d = spec.output.replace(box=("m", "n/2"))
    bias = Operand(name="bias", dtype=DType.BF16, box=("n",))
    operands = (*(each for each in spec.operands if each.name != d.name), bias, d)
    return spec.replace(
        operands=operands, epilogue=(Bias(vector="bias"), Gate("gelu_tanh", layout=layout), *spec.epilogue)
    )


WIDEST_PAIR = dense_sm100.PairShape(256, ctas=2)


def biased(tile: str, function: str, dtype: DType) -> KernelSpec:
    """The FP8 product of a shipped tile as the operator has it with a bias and an activation."""
    bias, d = Operand(name="bias", dtype=dtype, box=("n",)), Operand(name="d", dtype=DType.BF16, box=("m", "n"))
    steps = (Bias(vector="bias"), Activation(function=function), Cast(to=DType.BF16), Store(to="d"))
    epilogue = Epilogue(name=function, operands=(bias, d), steps=steps)  # type: ignore[arg-type]
    (shape,) = [each for each in catalog.FP8_SHAPES if each.label == tile]
    return epilogue.of(catalog.fp8_gemm_nt(catalog.behind(shape, epilogue)))


def found(product: Callable[..., KernelSpec], early: bool) -> KernelSpec:
    """Groups by ids whose tiles of 192 rows a launch finds."""
    spec = product(catalog.Shape(192, 128, groups=3, unroll=1))
    return catalog.in_row_groups(catalog.launched_early(spec) if early else spec, "ids", 128)


def by_columns(shape: catalog.Shape, by: str) -> KernelSpec:
    """Groups whose B has a scale for each column, added to what is there."""
    return catalog.in_row_groups(catalog.fp8_gemm_nt(shape, DType.F32, residual=True, sfb_columns=1), by)


def gradient(shape: catalog.Shape, d: DType, how: str, sfa_major: str) -> KernelSpec:
    """Groups of k, which are ``added`` to sums, or to a C."""
    spec = catalog.fp8_gemm_nt(shape, d, how == "with C", sfa_major, 1)
    return catalog.in_k_groups(catalog.accumulating(spec) if how == "added" else spec, "counts", 128, apart=True)


def further() -> Iterator[tuple[str, Callable[[], KernelSpec]]]:
    """Every further tile in one of the combinations that may take it."""
    combinations = (("nn", DType.BF16, False), ("tn", DType.F32, False), ("tt", DType.BF16, True))
    offered = [list(further_bf16(*each)) for each in combinations]
    turns = itertools.cycle(zip(combinations, offered, strict=True))
    seen = set[str]()
    for (layout, d, residual), shapes in itertools.islice(turns, 3 * 16):
        if (shape := next((each for each in shapes if each.label not in seen), None)) is not None:
            seen.add(shape.label)
            product = partial(catalog.bf16_gemm, layout, shape, d, residual)
            yield f"bf16_gemm_{layout} into {d}{' with C' if residual else ''}, further {shape.label}", product
    for d, residual, major, columns in itertools.product(catalog.OUTPUTS, (False, True), "mk", (128, 1)):
        for shape in [each for each in further_fp8(d, residual, major, columns) if each.m > 64]:
            scaled = partial(catalog.fp8_gemm_nt, shape, d, residual, major, columns)
            what = f"fp8_gemm_nt into {d}{', with C' if residual else ''}"
            yield f"{what}, scales along {major}, for {columns}, further {shape.label}", scaled


VARIANTS: dict[str, Callable[[], KernelSpec]] = {
    "fp8_gemm_nt, programmatic launch": lambda: catalog.fp8_gemm_nt(SMALL, programmatic_launch=True),
    **{
        f"bf16_gemm_{layout}, programmatic launch": partial(catalog.bf16_gemm, layout, SMALL, programmatic_launch=True)
        for layout in catalog.BF16_LAYOUTS
    },
    "one tile a CTA": lambda: BF16.replace(name="one_tile", schedule=OneTile()),
    "every epilogue step": lambda: BF16.replace(
        name="every_step",
        operands=(*BF16.operands, *VECTORS),
        epilogue=(
            Scale(by="alpha"),
            Scale(by="rows"),
            Bias(vector="bias"),
            Residual(matrix="c", beta="beta"),
            Keep(to="pre"),
            Activation(function="gelu_tanh"),
            SoftCap(cap=30.0),
            Scale(by="gate"),
            Apply(expression="silu(acc) * gain"),
            *BF16.epilogue,
        ),
    ),
    "reductions": lambda: BF16.replace(
        name="reductions",
        operands=(*BF16.operands, VECTORS[2], *REDUCED),
        epilogue=(
            Bias(vector="bias"),
            Reduce(function="sum_of_squares", along="n", to="sums"),
            Activation(function="gelu"),
            Reduce(function="amax", along="mn", to="largest"),
            Reduce(function="sum", along="m", to="columns"),
            *BF16.epilogue,
        ),
    ),
    **{
        f"sums of {tile} that start from a bias of {dtype}, {function} behind": partial(biased, tile, function, dtype)
        for tile in ("128x256", "128x224", "192x160")
        for function in ("relu", "silu")
        for dtype in (DType.F32, DType.BF16)
    },
    **{
        f"tiles of {dtype} that begin where groups do{early}": partial(found, product, bool(early))
        for dtype, product in (("e4m3", catalog.fp8_gemm_nt), ("bf16", partial(catalog.bf16_gemm, "nt")))
        for early in ("", ", programmatic launch")
    },
    **{
        f"a scale for each column of groups by {by}, {shape.label}": partial(by_columns, shape, by)
        for by in ("ids", "ends", "counts")
        for shape in catalog.grouped_shapes(DType.E4M3, by, 1)[-2:]
    },
    **{
        f"gradients in {d} with scales along {major}{', ' + how if how else ''}, {shape.label}": partial(
            gradient, shape, d, how, major
        )
        for d, how in ((DType.F32, "added"), (DType.F32, "with C"), (DType.BF16, "with C"), (DType.BF16, ""))
        for major in "mk"
        for shape in catalog.gradient_shapes(DType.E4M3, False, major, how == "with C", how == "added")[-2:]
    },
    **dict(further()),
    **{
        f"{spec.name}, programmatic launch": partial(catalog.launched_early, spec)
        for arch, columns in catalog.PRENORM_COLUMNS.items()
        for spec in catalog.prenorm_forms(arch, columns[-1]).specs(arch)
    },
    "a gate on sm90's widest tile": lambda: gated(catalog.bf16_gemm("nt", catalog.Shape(128, 256)), "interleaved"),
    "a gate on sm90's pair of CTAs": lambda: gated(catalog.bf16_gemm("nt", catalog.Shape(128, 256, cluster=(2, 1)))),
    "a gate on sm100's widest tile": lambda: gated(dense_sm100.bf16_gemm("nt", WIDEST_PAIR)),
    "groups of rows on sm100's widest tile": lambda: row_groups_sm100("ends", catalog.NVFP4, WIDEST_PAIR),
    "groups of rows on sm100, quantised": lambda: catalog.in_row_groups(
        fused.mxfp8_output(words=True).of(dense_sm100.bf16_gemm("nt", WIDEST_PAIR)), "counts"
    ),
    "a gate on sm120's widest tile": lambda: gated(
        dense_sm120.bf16_gemm("nt", dense_sm120.WarpShape(128, 256, k_bytes=64))
    ),
}


def compile_and_check(spec: KernelSpec, record_property: Callable[[str, object], None]) -> None:
    compiled = compile_cubin(emit(spec), spec.arch, f"{spec.name}.cu")
    record_property("seconds", compiled.seconds)
    resources = compiled.resources[spec.name]
    assert resources.spill_store_bytes == resources.spill_load_bytes == 0
    assert resources.stack_bytes == 0
    assert resources.static_shared_bytes <= 1024
    # setmaxnreg moves registers between roles; the launch takes what the whole SM has for this many threads.
    assert resources.registers * lower(spec).threads * spec.ctas_per_sm <= 65536


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_kernel_compiles_without_spills(name: str, record_property: Callable[[str, object], None]) -> None:
    compile_and_check(catalog.specs()[name], record_property)


@pytest.mark.parametrize("what", VARIANTS)
def test_what_a_user_may_compose_compiles_without_spills(
    what: str, record_property: Callable[[str, object], None]
) -> None:
    compile_and_check(VARIANTS[what](), record_property)


COMPILE_ONE = """
from gemmgen import catalog
from gemmgen.backends import emit
from gemmgen.runtime.nvrtc import compile_cubin, compile_ptx
spec = catalog.specs()["sm90_bf16_gemm_nt_bf16_64x32"]
text = emit(spec)
print(len(compile_cubin(text, "sm90", "k.cu").code) > 1000)
print(".entry " + spec.name in compile_ptx(text, "sm90", "k.cu").text)
"""


def test_no_toolkit_is_needed(tmp_path: Path) -> None:
    """With no PATH, no CUDA variables and another working directory, so neither nvcc nor a header can be found."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    environment = {**kept, "PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE_ONE]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr
    assert list(tmp_path.iterdir()) == []
