"""Which kernel serves which problem on workstation Blackwell, and the memory that calls with shared sums get."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from sm100_problems import fp4, fp8

import gemmgen
from gemmgen import catalog, ops
from gemmgen.backends import lower
from gemmgen.catalog import COARSE_FP4, FP8, FP8_FP4, MXFP4, NVFP4, Product, WarpShape
from gemmgen.ir import KernelSpec
from gemmgen.ops import choice_sm120, workspace
from gemmgen.ops.block import block_builder, whole_block
from gemmgen.ops.dispatch import encoder
from gemmgen.ops.launch import Prepared
from gemmgen.ops.selection import UNFUSED, spec_for
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.arguments import Problem, TensorView, expected_shape, workspace_bytes
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.sim_target import SimTarget
from gemmgen.runtime.simulation import Simulation

SPECS = catalog.specs()
SIZES = tuple(itertools.product((1, 17, 128, 4096), (8, 136, 576, 7168), (96, 7168), (2, 188)))
LOW, SPLIT, SQUARE = (
    WarpShape(16, 128, (8, 1), swap=True),
    WarpShape(16, 128, (8, 1), swap=True, splits=4),
    WarpShape(128, 128, k_bytes=64),
)


def chosen(operator: str, **choices: Any) -> set[KernelSpec]:
    return {spec_for(operator, m, n, k, sms, arch="sm120", **choices) for m, n, k, sms in SIZES}


@pytest.mark.parametrize("operator", UNFUSED)
def test_bf16_without_c_is_always_a_kernel_that_ships(operator: str) -> None:
    """Factors with scales are k-contiguous in every layout: what lies otherwise is turned first."""
    specs = chosen(operator)
    assert all(SPECS[spec.name] == spec for spec in specs) and len(specs) > 1


@pytest.mark.parametrize("product", [FP8, FP8_FP4, MXFP4, NVFP4, COARSE_FP4, Product(COARSE_FP4.a, MXFP4.b)])
def test_every_choice_lowers(product: Product) -> None:
    for d, residual, direct in itertools.product(catalog.OUTPUTS, (False, True), (False, True)):
        choices = {"d": d, "residual": residual, "direct_store": direct}
        for spec in chosen(f"{product.operator}_nt", product=product, **choices):
            assert SPECS.get(spec.name, spec) == spec and lower(spec).store.dtype == d


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="there is no kernel for sm90; it runs on sm100 and sm120"):
        spec_for("mxfp4_gemm_nt", 1, 8, 128, 132, arch="sm90")


# ------------------------------------------------------------------------------------------------ the rule


def test_costs_by_hand() -> None:
    """300 x 500 x 1024 on 4 SMs: 12 tiles of 128x128 are 3 waves of 8 blocks of 2048 cycles, products or copies."""
    assert choice_sm120.cost(SQUARE, 300, 500, 1024, 4).total == 3 * (8 * 2048 + 1500)
    assert choice_sm120.cost(LOW, 4, 256, 1024, 4).total == pytest.approx(8 * (4 + 128) * 8 + 1500)
    shared = 4 * (4 + 128) * 8 + 1500 + 1500 + 5 * 16 * 128 * 4 / 16
    assert choice_sm120.cost(SPLIT, 4, 256, 2048, 8).total == pytest.approx(shared)
    assert choice_sm120.cost(SQUARE, 128, 2**20, 128, 2**20).total == pytest.approx(((128 + 2**20) * 128 + 2**28) / 700)


def test_shares_are_whole_words_of_scales() -> None:
    """9 blocks with a word for 4: three CTAs have 4, 4 and 1, the fourth nothing; so a share costs 4 blocks, not 3."""
    by_block, by_word = (choice_sm120.cost(SPLIT, 4, 128, 9 * 128, 8, word).total for word in (128, 512))
    assert by_word - by_block == pytest.approx((4 - 3) * 132 * 8)


def cheapest(shapes: tuple[WarpShape, ...], m: int, n: int, k_bytes: int, sms: int) -> WarpShape:
    allowed = choice_sm120.allowed(shapes, m, n)
    return min(allowed, key=lambda shape: choice_sm120.cost(shape, m, n, k_bytes, sms).key)


def test_few_rows_are_swapped_and_few_tiles_shared() -> None:
    assert cheapest((LOW, SPLIT, SQUARE), 4096, 4096, 4096, 188) == SQUARE
    assert cheapest((LOW, SPLIT, SQUARE), 4, 4096, 7168, 188) == SPLIT
    assert cheapest((LOW, SPLIT, SQUARE), 4, 188 * 128, 256, 188) == LOW


def test_sums_that_take_too_much_memory_are_not_shared() -> None:
    narrow = WarpShape(64, 64, (2, 4), splits=32)
    assert choice_sm120.workspace(narrow, 512, 512) == 64 * 32 * 64 * 64 * 4 == choice_sm120.WORKSPACE
    assert cheapest((SQUARE, narrow), 576, 512, 10**6, 4096) == SQUARE


# ------------------------------------------------------------------------------------------------ workspaces


def test_a_prepared_block_equals_packing_anew_with_a_workspace() -> None:
    spec = catalog.scaled_gemm_sm120(FP8, SPLIT)
    plan, sizes = lower(spec), {"m": 4, "n": 136, "k": 1056}
    shapes = {each.name: expected_shape(each, sizes) for each in spec.operands}
    strides = {each.name: (1, 64) if each.inner != each.box[-1] else (2048, 1) for each in spec.operands}
    room = workspace_bytes(plan, sizes, 1)
    assert room == {"partials": 2 * 4 * 16 * 128 * 4, "arrivals": 2 * 8 * 4}

    def problem(base: int) -> Problem:
        at = {name: base + 4096 * 32 * index for index, name in enumerate((*shapes, *room))}
        views = {name: TensorView(at[name], shape, strides[name]) for name, shape in shapes.items()}
        return Problem(sizes, views, {}, {name: at[name] for name in room})

    encode = encoder(SimTarget(Simulation(resolve("sm120"))))
    build = block_builder(plan, (*shapes, *room), (), problem(32), encode)
    moved = problem(0x7F00_1234_5660)
    addresses = [*(view.address for view in moved.tensors.values()), *moved.workspace.values()]
    assert build(addresses, ()) == whole_block(plan, moved, encode)


def test_every_launch_has_a_workspace_of_its_own_and_counters_at_zero() -> None:
    """Two launches in flight, on two streams say, share nothing where no zeros stand."""
    seen: list[tuple[int, ...]] = []
    kept: list[torch.Tensor] = []
    make = workspace.allocator({"partials": 64, "arrivals": 32}, workspace.empty_on(torch.device("cpu")))

    def room() -> tuple[list[torch.Tensor], list[int]]:
        memory, parts = make()
        kept.extend(memory)
        assert not memory[0].any()
        return memory, parts

    prepared = Prepared(
        launch=lambda params: None,  # type: ignore[arg-type]
        build=lambda addresses, scalars: seen.append(tuple(addresses)) or b"",  # type: ignore[func-returns-value]
        names=("d",),
        outputs=((0, 4),),
        other_bytes=(),
        copied=(),
        check_overlap=lambda slots: None,
        room=room,
    )
    d = torch.zeros(1)
    prepared((d,))
    prepared((d,))
    assert [len(each) for each in seen] == [3, 3] and seen[0][0] == seen[1][0] == d.data_ptr()
    assert not set(seen[0][1:]) & set(seen[1][1:])
    assert {each.data_ptr() for each in kept} == {*seen[0][1:], *seen[1][1:]}
    assert [each.numel() for each in kept] == [workspace.PART_ALIGNMENT] * 4


# ------------------------------------------------------------------------------------------------ layout kernels


def launched(call: Any, *arguments: Any, **options: Any) -> int:
    with gemmgen.simulate("sm120", sms=2) as simulation:
        call(*arguments, **options)
    return len(simulation.reports)


def test_what_lies_right_is_launched_once_and_every_turn_once_more() -> None:
    a, b = fp8(16, 128, seed=1), fp8(24, 128, seed=2)
    turned = b.data.T.contiguous().T, b.words[1]
    assert launched(ops.fp8_gemm_nt, a.words, b.words) == 1
    assert launched(ops.fp8_gemm_nt, a.fp32, b.words) == 2
    assert launched(ops.fp8_gemm_nt, a.fp32, turned) == 3
    assert launched(ops.fp8_gemm_nt, a.words, b.e8m0, recipe=(1, 1, 128)) == 2
    four = fp4(24, 128, seed=3)
    along_n = ops.transpose_packed_fp4(four.data).mT, four.words[1]
    assert launched(ops.fp8_fp4_gemm_nt, fp8(16, 128, (1, 32)).words, along_n, recipe=(1, 1, 32)) == 2
