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


def added_to(shape: Shape) -> KernelSpec:
    """A scale for 1x128 of either factor, summed in fp32 where sums lie."""
    return catalog.accumulating(catalog.fp8_gemm_nt(shape, DType.F32, sfb_columns=1))


def factors(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return exact_factor(M, k, torch.float8_e4m3fn, 1), exact_factor(N, k, torch.float8_e4m3fn, 2)


def scales(rows: int, k: int) -> torch.Tensor:
    """All 0.5, contiguous along rows, columns 16 bytes apart."""
    return torch.full((-(-k // 128), -(-rows // 4) * 4), 0.5)[:, :rows].T


def fetched(spec: KernelSpec, given: dict[str, torch.Tensor], sms: int) -> Counter[tuple[int, ...]]:
    """The boxes that L2 was asked for, all of one tensor."""
    with gemmgen.simulate("sm90", sms=sms) as simulation:
        gemmgen.op(spec)(**given)
    found = simulation.reports[-1].fetched
    assert len({address for address, _ in found}) == 1
    return Counter(coords for _, coords in found)


@pytest.mark.parametrize("shape", [SMALL, NARROW], ids=lambda shape: shape.label)
@pytest.mark.parametrize("blocks", [1, 3, 15, 16, 17, 40])
def test_every_box_of_a_tile_is_fetched_once(blocks: int, shape: Shape) -> None:
    a, b = factors(k := 128 * blocks - 16)
    given = {"a": a, "sfa": scales(M, k), "b": b, "sfb": scales(N, k), "d": torch.ones(M, N)}
    assert fetched(spec := added_to(shape), given, sms=2) == boxes(spec, ())
    assert torch.equal(given["d"], 1 + 0.25 * (a.float() @ b.float().T))


def test_groups_fetch_their_own_sums_and_empty_ones_none() -> None:
    counts = (256, 0, 2304, 128)
    spec = catalog.in_k_groups(added_to(SMALL), "counts", 128, apart=True)
    parts, k = [factors(count) for count in counts], sum(counts)
    a, b = (torch.cat([part[side].flatten() for part in parts]).view(-1, k) for side in (0, 1))
    given = {"a": a, "sfa": scales(M, k), "b": b, "sfb": scales(N, k), "d": torch.ones(len(counts), M, N)}
    assert fetched(spec, {**given, "layout": torch.tensor(counts, dtype=torch.int32)}, sms=3) == boxes(spec, (0, 2, 3))
    for d, (x, y) in zip(given["d"], parts, strict=True):
        assert torch.equal(d, 1 + 0.25 * (x.float() @ y.float().T))


def test_scaled_products_fetch_what_they_are_added_to_and_others_do_not() -> None:
    scaled = added_to(SMALL)
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
