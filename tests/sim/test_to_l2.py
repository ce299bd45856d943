"""What memory adds to is fetched to L2 beside products: every box of a tile once, of its own group, whatever its k."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from reference import exact_factor

import gemmgen
from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ir import DType, KernelSpec, TmaLoad
from gemmgen.ops.kernels import kernel_of

M, N = 150, 104
SMALL = Shape(64, 64, groups=1, slots=2, unroll=1)
NARROW = Shape(64, 40, groups=1, slots=2, unroll=1)


def boxes(spec: KernelSpec, groups: tuple[int, ...]) -> Counter[tuple[int, ...]]:
    """Those of all tiles, edges included: where a box begins, and whose it is."""
    tile, plan = spec.tile, kernel_of(spec).plan
    wide, high = next(entry.box for entry in plan.tensor_maps if entry.operand == "d")[:2]
    rows = [m + row for m in range(0, M, tile.m) for row in range(0, tile.m, high)]
    cols = [n + col for n in range(0, N, tile.n) for col in range(0, tile.n, wide)]
    return Counter((n, m, *group) for m, n in product(rows, cols) for group in ([(g,) for g in groups] or [()]))


def dense(k: int, shape: Shape = SMALL) -> tuple[KernelSpec, dict[str, torch.Tensor], tuple[int, ...]]:
    spec = with_to_l2(catalog.accumulating(catalog.bf16_gemm("nt", shape, DType.F32)), "d")()
    a, b = (exact_factor(rows, k, torch.bfloat16, rows) for rows in (M, N))
    return spec, {"a": a, "b": b, "d": torch.ones(M, N)}, ()


def of_groups(*counts: int) -> tuple[KernelSpec, dict[str, torch.Tensor], tuple[int, ...]]:
    added = with_to_l2(catalog.accumulating(catalog.bf16_gemm("tn", SMALL, DType.F32)), "d")()
    spec = catalog.in_k_groups(added, "counts")
    a, b = (exact_factor(rows, sum(counts), torch.bfloat16, rows).T.contiguous().T for rows in (M + 2, N))
    layout = torch.tensor(counts, dtype=torch.int32)
    given = {"a": a[:M], "b": b, "d": torch.ones(len(counts), M, N), "layout": layout}
    return spec, given, tuple(group for group, count in enumerate(counts) if count)


@pytest.mark.parametrize("shape", [SMALL, NARROW], ids=lambda shape: shape.label)
@pytest.mark.parametrize("blocks", [1, 3, 15, 16, 17, 40])
def test_every_box_of_a_tile_is_fetched_once(blocks: int, shape: Shape) -> None:
    spec, given, groups = dense(64 * blocks - 8, shape)
    with gemmgen.simulate("sm90", sms=2) as simulation:
        gemmgen.op(spec)(**given)
    fetched = Counter(coords for _, coords in simulation.reports[-1].fetched)
    assert fetched == boxes(spec, groups)
    assert torch.equal(given["d"], 1 + given["a"].float() @ given["b"].float().T)


def test_groups_fetch_their_own_sums_and_empty_ones_none() -> None:
    spec, given, groups = of_groups(200, 0, 1300, 64)
    assert groups == (0, 2, 3)
    with gemmgen.simulate("sm90", sms=3) as simulation:
        gemmgen.op(spec)(**given)
    assert Counter(coords for _, coords in simulation.reports[-1].fetched) == boxes(spec, groups)


def test_scaled_products_fetch_what_they_are_added_to_and_others_do_not() -> None:
    scaled = catalog.accumulating(catalog.fp8_gemm_nt(SMALL, DType.F32, sfb_columns=1))
    assert kernel_of(scaled).plan.to_l2 == ("d",)
    assert "gemmgen::to_l2<TILE_M, TILE_N, 16, 32>(p.d, tile.m(), tile.n(), k_blocks - kb, k_blocks);" in text(scaled)
    assert kernel_of(catalog.accumulating(catalog.bf16_gemm("nt", SMALL, DType.F32))).plan.to_l2 == ()
    assert kernel_of(catalog.fp8_gemm_nt(SMALL, DType.F32, sfb_columns=1)).plan.to_l2 == ()


def text(spec: KernelSpec) -> str:
    return kernel_of(spec).text.source


def with_to_l2(spec: KernelSpec, *names: str) -> Callable[[], KernelSpec]:
    def build() -> KernelSpec:
        load = spec.load
        assert isinstance(load.body, TmaLoad)
        changed = load.replace(body=load.body.replace(to_l2=names))
        return spec.replace(roles=tuple(changed if role is load else role for role in spec.roles))

    return build


def refused() -> Iterator[tuple[Callable[[], object], str]]:
    added = catalog.accumulating(catalog.bf16_gemm("nt", SMALL, DType.F32))
    yield with_to_l2(catalog.bf16_gemm("nt", SMALL), "d"), "'d' is no output that a Store through a ring adds"
    yield with_to_l2(added, "a"), "'a' is no output that a Store through a ring adds"
    split = catalog.accumulating(catalog.bf16_gemm("nt", Shape(64, 32, groups=1, share=True), DType.F32))
    yield with_to_l2(split, "d"), "schedule split_k; only with Persistent are tiles fetched, so use it"
    other = catalog.accumulating(catalog.bf16_gemm_sm120("nt", catalog.WarpShape(64, 64), DType.F32))
    yield lambda: kernel_of(with_to_l2(other, "d")()), "has to_l2, which is lowered for sm90 alone; leave it out"


@pytest.mark.parametrize(("build", "sentence"), list(refused()))
def test_what_is_not_fetched_is_refused(build: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()
