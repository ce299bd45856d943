"""The commands on kernels for datacenter Blackwell: narrow inputs as they lie in memory, every kind of product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference as meaning
import torch

from gemmgen import catalog
from gemmgen.backends import lower, table
from gemmgen.catalog.dense_sm100 import tf32_gemm_nt
from gemmgen.commands import checking, inputs, reference
from gemmgen.ir import DType, KernelSpec, Operand

Command = Callable[..., Any]
EXAMPLES = Path(__file__).parents[2] / "examples"
Factor, Product, PairShape = catalog.Factor, catalog.Product, catalog.PairShape
NARROW = PairShape(32)
E5M2 = Product(Factor(DType.E5M2, 32), Factor(DType.E4M3, 128))
SPECS = {
    "bf16 tt": catalog.bf16_gemm_sm100("tt", PairShape(64), DType.F32, residual=True),
    "tf32": tf32_gemm_nt(NARROW),
    "fp8": catalog.scaled_gemm_sm100(catalog.FP8, NARROW),
    "fp8 tn": catalog.scaled_gemm_sm100(catalog.FP8.lying("tn"), PairShape(128)),
    "e5m2": catalog.scaled_gemm_sm100(E5M2, NARROW),
    "fp8 x fp4": catalog.scaled_gemm_sm100(catalog.FP8_FP4, NARROW),
    "mxfp4": catalog.scaled_gemm_sm100(catalog.MXFP4, NARROW),
    "nvfp4": catalog.scaled_gemm_sm100(catalog.NVFP4, NARROW, residual=True),
}


@pytest.mark.parametrize("kind", SPECS)
def test_the_two_references_agree_on_random_inputs(kind: str) -> None:
    """That of the commands, and that of the tests with decoders of its own."""
    spec = SPECS[kind]
    found = inputs.random_operands(spec, {"m": 37, "n": 40, "k": 384}, seed=3)
    tensors = {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}
    scalars = {name: each for name, each in found.items() if isinstance(each, float)}
    del tensors[spec.output.name]
    torch.testing.assert_close(
        reference.reference(spec, found), meaning.evaluate(spec, tensors, scalars), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(("dtype", "block"), [(DType.E4M3, 32), (DType.E2M1, 32), (DType.E2M1, 16), (DType.E5M2, 128)])
def test_quantised_numbers_are_near_the_values(dtype: DType, block: int) -> None:
    scale = DType.UE4M3X4 if block == 16 else DType.UE8M0X4
    data = Operand(name="a", dtype=dtype, box=("m", "k"))
    words = Operand(name="sfa", dtype=scale, box=("m", f"k/{4 * block}"), major="m")
    values = torch.randn(20, 96, generator=torch.Generator().manual_seed(0))
    stored, scales = inputs.quantise(values, data, words)
    assert stored.dtype == {DType.E2M1: torch.int8, DType.E4M3: torch.float8_e4m3fn}.get(dtype, torch.float8_e5m2)
    assert scales.shape == (20, -(-96 // (4 * block))) and scales.stride(0) == 1
    numbers = reference._numbers(stored, data) * reference._spread(scales, words, 20, 96)
    steps = {DType.E4M3: 1 / 16, DType.E5M2: 1 / 8, DType.E2M1: 1 / 3}[dtype]
    assert ((numbers - values).abs() <= steps * values.abs().amax(1, keepdim=True)).all()
    assert numbers.abs().max() > 1


def test_scale_bytes_past_k_are_nan_and_so_is_what_pads_rows() -> None:
    spec = SPECS["mxfp4"]
    found = inputs.random_operands(spec, {"m": 5, "n": 8, "k": 160}, seed=0)
    words = found["sfa"]
    assert isinstance(words, torch.Tensor) and words.shape == (5, 2)
    assert ((words[:, 1] >> 8 & 0xFFFFFF) == 0xFFFFFF).all() and ((words[:, 1] & 0xFF) != 0xFF).all()
    storage = torch.empty(0, dtype=torch.int32).set_(words.untyped_storage())
    assert (storage == -1).sum() == storage.numel() - words.numel()


@pytest.mark.parametrize(
    ("op", "k"),
    [
        ("bf16_gemm_nn", 72),
        ("fp8_gemm_nt", 200),
        ("fp8_gemm_tt", 144),
        ("fp8_fp4_gemm_nt", 256),
        ("mxfp4_gemm_nt", 320),
        ("nvfp4_gemm_nt", 288),
    ],
)
def test_run_says_right_for_every_kind_of_product(gemmgen: Command, op: str, k: int) -> None:
    done = gemmgen("run", op, "--arch", "sm100", "-m", 40, "-n", 24, "-k", k, "--on", "sim", "--schedule", "random")
    assert done.status == 0, done.out + done.err
    rows = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert rows["kernel"].startswith(f"sm100_{op}_") and rows["result"] == "right"
    assert rows["device"].startswith("simulator of sm100, schedule random")
    assert float(rows["error"].split()[0]) < 4e-3 and "warning" not in rows


def test_an_op_without_kernels_for_hopper_needs_no_arch(gemmgen: Command) -> None:
    assert gemmgen("plan", "nvfp4_gemm_nt", "-m", 64, "-n", 64).out.startswith("sm100_nvfp4_gemm_nt_bf16_")
    assert "there is no kernel for sm90" in gemmgen("plan", "nvfp4_gemm_nt", "--arch", "sm90").err


def test_the_example_for_blackwell_is_right(gemmgen: Command) -> None:
    target = f"{EXAMPLES / 'blackwell_spec.py'}:nvfp4"
    done = gemmgen("run", target, "-m", 140, "-n", 136, "-k", 544, "--on", "sim", "--schedule", "starve")
    assert done.status == 0, done.out + done.err
    assert "warning" not in done.out
    assert "launch_control" in gemmgen("plan", target).out


def test_check_of_a_block_scaled_kernel(gemmgen: Command) -> None:
    done = gemmgen("check", "sm100_nvfp4_gemm_nt_bf16_128x16", "--arch", "sm_103a")
    assert done.status == 0, done.out + done.err
    runs = [line.split() for line in done.out.splitlines() if line.endswith("right")]
    assert len(runs) == 16 and {row[-2] for row in runs} == {"0"}
    assert done.out.splitlines()[1].split()[1] == "sm_103a"


def test_a_pair_that_multiplies_too_early_is_found(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_run_command import planted

    with planted(monkeypatch, WAIT, ""):
        done = gemmgen("run", PAIR.name, "-m", 130, "-n", 48, "-k", 300, "--on", "sim", "--schedule", "late")
    assert done.status == 1
    assert "WRONG" in done.out or "ab.a[" in done.err


PAIR = catalog.specs()["sm100_bf16_gemm_nt_bf16_256x128"]
WAIT = "gemmgen::warp_wait(gemmgen::bar(ab::FULL, at.slot), at.phase);"


@pytest.mark.parametrize("form", ["cuda", "ptx", "sass", "plan", "json"])
def test_emit_in_every_form(gemmgen: Command, form: str) -> None:
    done = gemmgen("emit", PAIR.name, "--as", form, "--arch", "sm_103a")
    assert done.status == 0, done.err
    mark = {"ptx": ".target sm_103a", "sass": "UTCHMMA.2CTA", "plan": "ring acc", "json": '"cta', "cuda": "tcgen05"}[
        form
    ]
    assert mark in done.out


def test_plan_fits_a_screen() -> None:
    """24 lines of 160 columns, for every kernel that is shipped."""
    for spec in catalog.specs().values():
        lines = table(lower(spec)).splitlines()
        assert len(lines) <= 24 and max(map(len, lines)) <= 160, spec.name


def test_a_chip_of_another_architecture_is_refused(gemmgen: Command) -> None:
    done = gemmgen("plan", PAIR.name, "--arch", "sm90")
    assert done.status == 1 and f"--arch sm_90a is of sm90, {PAIR.name} is a kernel for sm100" in done.err


def test_sizes_of_mixed_factors_are_whole_blocks_of_k() -> None:
    spec: KernelSpec = SPECS["fp8 x fp4"]
    assert inputs.k_step(spec) == 128
    assert all(sizes.k % 128 == 0 for sizes in checking.ragged_sizes(spec))
    assert [inputs.k_step(SPECS[kind]) for kind in ("bf16 tt", "fp8", "mxfp4", "nvfp4")] == [1, 1, 2, 2]
