"""Which kernel serves which problem on datacenter Blackwell: the rule by hand, layouts by strides, and what ships."""

from __future__ import annotations

import itertools

import pytest
import torch
from sm100_problems import fp4, fp8

import gemmgen
from gemmgen import catalog, ops
from gemmgen.backends import lower
from gemmgen.catalog import FP8, FP8_FP4, LAYOUTS, MXFP4, NVFP4, Factor, PairShape, Product
from gemmgen.ir import DType, KernelSpec, LaunchControl, Persistent
from gemmgen.ops import choice_sm100, dense_block_scaled
from gemmgen.ops.block import PatchedBlock, block_builder, whole_block
from gemmgen.ops.dispatch import Choice, encoder
from gemmgen.ops.launch import metadata
from gemmgen.ops.selection import PRODUCTS, UNFUSED, spec_for
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.arguments import Problem, TensorView, expected_shape
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.sim_target import SimTarget
from gemmgen.runtime.simulation import Simulation

SPECS = catalog.specs()
SIZES = tuple(itertools.product((1, 128, 129, 4096), (8, 16, 24, 136, 2112, 7168), (96, 7168), (2, 148)))


def chosen(operator: str, **choices: object) -> set[KernelSpec]:
    return {spec_for(operator, m, n, k, sms, arch="sm100", **choices) for m, n, k, sms in SIZES}  # type: ignore[arg-type]


@pytest.mark.parametrize("operator", UNFUSED)
def test_bf16_without_c_is_always_a_kernel_that_ships(operator: str) -> None:
    product = PRODUCTS.get(operator)
    specs = chosen(operator)
    if product is not None and product.operator == "fp8_fp4_gemm" and product.layout != "nt":
        assert all(lower(spec).name.startswith(f"sm100_fp8_fp4_gemm_{product.layout}_") for spec in specs)
    else:
        assert all(SPECS[spec.name] == spec for spec in specs)
    assert len(specs) > 1


@pytest.mark.parametrize("product", [FP8, FP8_FP4, MXFP4, NVFP4, Product(Factor(DType.E2M1, 128), MXFP4.b)])
def test_every_choice_lowers(product: Product) -> None:
    """Also those that are made at their first call."""
    seen = set()
    for layout, d, residual, direct in itertools.product(LAYOUTS, catalog.OUTPUTS, (False, True), (False, True)):
        lying = product.lying(layout)
        choices = {"d": d, "residual": residual, "direct_store": direct}
        for spec in chosen(f"{lying.operator}_{lying.layout}", product=lying, **choices):
            if spec not in seen:
                seen.add(spec)
                assert SPECS.get(spec.name, spec) == spec
                plan = lower(spec)
                assert (plan.store.through is None) == direct and plan.store.dtype == d


def test_bf16_choices_lower() -> None:
    for layout, d, residual, direct in itertools.product(LAYOUTS, catalog.OUTPUTS, (False, True), (False, True)):
        for spec in chosen(f"bf16_gemm_{layout}", d=d, residual=residual, direct_store=direct):
            assert SPECS.get(spec.name, spec) == spec
            assert lower(spec).operand("a").inner == ("k" if layout[0] == "n" else "m")


# ------------------------------------------------------------------------------------------------ the rule


ONE, PAIR, WIDE, WIDEST = PairShape(128), PairShape(128, ctas=2), PairShape(224, ctas=2), PairShape(256, ctas=2)


def test_costs_by_hand() -> None:
    """300 x 500 on 4 SMs: 3 x 4 tiles are 3 waves of singles; 2 x 4 pairs take 4 waves of 2."""
    assert choice_sm100.cost(ONE, 300, 500, 1024, 4, scaled=True).total == 3 * 8 * 192 + 4 * 128
    assert choice_sm100.cost(PAIR, 300, 500, 1024, 4, scaled=True).total == 4 * 8 * 192 + 4 * 128
    assert choice_sm100.cost(WIDEST, 512, 512, 1024, 4, scaled=True).total == 2 * 8 * 320 + 2 * 4 * 256
    assert choice_sm100.cost(WIDEST, 512, 512, 1024, 4, scaled=False).total == 2 * 8 * 320 + 4 * 256


def cheapest(shapes: tuple[PairShape, ...], m: int, n: int, k_bytes: int, sms: int, scaled: bool) -> PairShape:
    return min(shapes, key=lambda shape: choice_sm100.cost(shape, m, n, k_bytes, sms, scaled).key)


def test_pairs_win_ties_only_where_they_fill_the_device() -> None:
    shapes = (ONE, PAIR)
    assert cheapest(shapes, 4096, 4096, 4096, 128, scaled=True) == PAIR
    assert cheapest(shapes, 128, 128 * 128, 4096, 128, scaled=True) == ONE
    assert cheapest(shapes, 256, 512, 4096, 128, scaled=True) == ONE


def test_two_accumulators_are_worth_more_the_shorter_k_is() -> None:
    shapes = (WIDE, WIDEST)
    assert cheapest(shapes, 4096, 7168, 256, 148, scaled=True) == WIDE
    assert cheapest(shapes, 256 * 74, 256, 16384, 148, scaled=True) == WIDEST


def test_the_widths_that_fit_twice_are_what_lowering_finds() -> None:
    for shape in (WIDE, WIDEST, PairShape(256)):
        for scaled, spec in (
            (False, catalog.bf16_gemm_sm100("nt", shape)),
            *((True, catalog.scaled_gemm_sm100(product, shape)) for product in (FP8, MXFP4, NVFP4)),
        ):
            slots = lower(spec).ring("acc").slots
            assert slots == (2 if shape.n <= choice_sm100.COLUMNS_FOR_TWO[scaled] else 1), spec.name


def test_few_rows_take_tiles_of_few_rows_whatever_comes_out() -> None:
    """Decoding: 8 rows of every operator, with C or in fp32; m-contiguous 8-bit factors have no narrow tile."""
    for operator, d, residual in itertools.product(UNFUSED, catalog.OUTPUTS, (False, True)):
        spec = spec_for(operator, 8, 7168, 4096, 148, arch="sm100", d=d, residual=residual)
        assert spec.tile.m == (
            128 if operator in TURNED else 64 if operator in ("bf16_gemm_tn", "bf16_gemm_tt") else 16
        )


TURNED = tuple(f"{family}_gemm_{layout}" for family in ("fp8", "fp8_fp4") for layout in ("tn", "tt"))


def test_launch_control_is_taken_when_asked_for() -> None:
    """The same tile under another schedule, for every operator; nothing takes it unasked."""
    for operator in UNFUSED:
        plain = spec_for(operator, 4096, 7168, 4096, 148, arch="sm100")
        asked = spec_for(operator, 4096, 7168, 4096, 148, arch="sm100", launch_control=True)
        assert asked.name == f"{plain.name}_clc" and (asked.tile, asked.cluster) == (plain.tile, plain.cluster)
        assert isinstance(asked.schedule, LaunchControl) and isinstance(plain.schedule, Persistent)
        assert SPECS.get(asked.name, asked) == asked
    with pytest.raises(UnsupportedArchitecture, match=r"^launch_control: sm90 hands out no launches, sm100 does"):
        spec_for("bf16_gemm_nt", 128, 128, 128, 132, launch_control=True)


def test_a_spec_with_launch_control_runs_as_an_op() -> None:
    """Nine tiles on two multiprocessors, by name and by pairs."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-2, 3, (rows, 64), generator=generator).to(torch.bfloat16) for rows in (300, 72))
    for shape in (PairShape(32, launch_control=True), PairShape(32, ctas=2, launch_control=True)):
        d = torch.full((300, 72), float("nan"), dtype=torch.bfloat16)
        with gemmgen.simulate("sm100", "random", sms=2):
            gemmgen.op(catalog.bf16_gemm_sm100("nt", shape))(a=a, b=b, d=d)
        assert torch.equal(d.double(), a.double() @ b.double().T)


def test_tf32_runs_as_an_op() -> None:
    """fp32 factors of small integers, which tf32 holds."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randint(-9, 10, (rows, 64), generator=generator).float() for rows in (17, 136))
    for name in ("16x128_swap", "128x128"):
        d = torch.full((17, 136), float("nan"))
        with gemmgen.simulate("sm100", "late"):
            gemmgen.op(SPECS[f"sm100_tf32_gemm_nt_f32_{name}"])(a=a, b=b, d=d)
        assert torch.equal(d, a @ b.T)


# ------------------------------------------------------------------------------------------------ dispatch


@pytest.mark.parametrize("product", [FP8, FP8_FP4, MXFP4, NVFP4])
def test_a_prepared_block_equals_packing_anew(product: Product) -> None:
    """Also with maps that spread 4-bit numbers, whose addresses are multiples of 32."""
    spec = catalog.scaled_gemm_sm100(product, ONE)
    plan = lower(spec)
    sizes = {"m": 40, "n": 48, "k": 512}
    tensors = [each for each in spec.operands if not each.is_scalar]
    shapes = {each.name: expected_shape(each, sizes) for each in tensors}
    strides = {each.name: (1, 64) if each.inner != each.box[-1] else (1024, 1) for each in tensors}

    def problem(base: int, alpha: float) -> Problem:
        views = {
            name: TensorView(base + 4096 * 32 * at, shape, strides[name])
            for at, (name, shape) in enumerate(shapes.items())
        }
        return Problem(sizes, views, {"alpha": alpha} if product.nvfp4 else {})

    encode = encoder(SimTarget(Simulation(resolve("sm100"))))
    scalars = ("alpha",) if product.nvfp4 else ()
    build = block_builder(plan, tuple(shapes), scalars, problem(32, 0.0), encode)
    moved = problem(0x7F00_1234_5660, 1.5)
    addresses = [view.address for view in moved.tensors.values()]
    assert build(addresses, tuple(moved.scalars.values())) == whole_block(plan, moved, encode)
    assert isinstance(build, PatchedBlock), "nothing is encoded again"


def test_what_is_remembered_of_a_call_tells_addresses_apart_that_only_4_bit_maps_do() -> None:
    room = torch.zeros(96, dtype=torch.int8)
    start = -room.data_ptr() % 32
    assert metadata((room[start : start + 32],)) != metadata((room[start + 16 : start + 48],))
    assert metadata((room[start : start + 32],)) == metadata((room[start + 32 : start + 64],))


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the specs that calls choose; the calls themselves end there."""
    names: list[str] = []

    def note(spec: KernelSpec) -> Choice:
        names.append(spec.name)
        raise InterruptedError

    monkeypatch.setattr(dense_block_scaled, "Choice", note)
    return names


def test_types_strides_and_granularity_choose_the_kernel(specs: list[str]) -> None:
    a, b = fp8(16, 256, seed=1), fp8(32, 256, seed=2)
    four_a, four_b = fp4(16, 256, seed=1), fp4(32, 256, seed=2)
    column_a, column_b = (each.data.T.contiguous().T for each in (a, b))
    calls = [
        (ops.fp8_gemm_nt, a.fp32, b.fp32, {}, "fp8_gemm_nt_e4m3x128_e4m3x128"),
        (ops.fp8_fp4_gemm_nt, a.words, b.words, {}, "fp8_gemm_nt_e4m3x128_e4m3x128"),
        (ops.fp8_gemm_nt, (column_a, a.fp32[1]), b.fp32, {}, "fp8_gemm_tt_e4m3x128_e4m3x128"),
        (ops.fp8_gemm_nt, a.fp32, (column_b, b.fp32[1]), {}, "fp8_gemm_nn_e4m3x128_e4m3x128"),
        (ops.fp8_gemm_nt, (column_a, a.fp32[1]), (column_b, b.fp32[1]), {}, "fp8_gemm_tn_e4m3x128_e4m3x128"),
        (ops.mxfp4_gemm_nt, four_a.e8m0, four_b.e8m0, {}, "mxfp4_gemm_nt"),
        (ops.fp8_fp4_gemm_nt, four_a.e8m0, four_b.e8m0, {"recipe": (1, 1, 32)}, "mxfp4_gemm_nt"),
        (
            ops.fp8_fp4_gemm_nt,
            (column_a, a.fp32[1]),
            four_b.fp32,
            {"recipe_a": (1, 128), "recipe_b": (1, 32)},
            "fp8_fp4_gemm_tt_e4m3x128_e2m1x32",
        ),
    ]
    with gemmgen.simulate("sm100"):
        for call, given_a, given_b, recipe, name in calls:
            with pytest.raises(InterruptedError):
                call(given_a, given_b, **recipe)  # type: ignore[operator]
            assert specs.pop().startswith(f"sm100_{name}_bf16_"), name


def test_operators_that_an_architecture_lacks() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"^fp8_gemm_nn: there is no kernel for sm90; it runs on sm100"):
        spec_for("fp8_gemm_nn", 1, 8, 128, 132, arch="sm90")
    with pytest.raises(UnsupportedArchitecture, match=r"^mxfp4_gemm_nt: there is no kernel for sm90; it runs on sm100"):
        spec_for("mxfp4_gemm_nt", 1, 8, 128, 132, arch="sm90")
