"""Grouped products on a GPU: every shipped kernel, hundreds of random layouts, and a graph whose layouts change."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import grouped
import pytest
import torch
from grouped_launch import on_gpu, ragged
from grouped_layouts import ALIGNMENT, CUDA, FORMS, KINDS, Ks, Rows, counts_drawn, layout_drawn, powers, whole
from grouped_problems import Layout, counts_of, ends, ids

import gemmgen
from gemmgen import catalog, ops
from gemmgen.catalog.grouped import BF16_SHAPES, FP8_FINE, FP8_SHAPES, SWAPPED_SHAPES
from gemmgen.commands.groups import dense
from gemmgen.ir import Arch, DType, KGroups, RowGroups
from gemmgen.ops import copies
from gemmgen.ops.choice_k_grouped import cost

LAYOUTS = 200
REPLAYS = 1000
HOPPER = [spec for spec in catalog.grouped_specs().values() if spec.arch == Arch.SM90]
OF_ROWS = [spec.name for spec in HOPPER if isinstance(spec.groups, RowGroups)]


@pytest.mark.parametrize("name", OF_ROWS)
def test_every_shipped_kernel_of_rows(name: str) -> None:
    """Ragged sizes, empty groups, NaN in what nobody owns; bytes of nobody stay, repeats are equal bit for bit."""
    spec = catalog.grouped_specs()[name]
    problem = ragged(spec)
    first, second = problem.run(), problem.run()
    for left, right in zip(first, second, strict=True):
        assert all(torch.equal(_bytes(left[name]), _bytes(right[name])) for name in left)


SUMMED = {
    "bf16": catalog.bf16_gemm("nt", catalog.Shape(64, 128, groups=1)),
    "fp8": catalog.fp8_gemm_nt(catalog.Shape(64, 128, groups=1), d=DType.F32),
}


@pytest.mark.parametrize("by", ["ids", "ends", "counts"])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_magnitudes_of_rows(kind: str, by: str) -> None:
    """Of every row that a group owns, of its columns and of all it has; the same bits again.

    Those of fp8 are judged by what is stored beside them: tensor cores keep 13 bits behind the point of a sum of e4m3
    products, which is within what a tile may be off but not within what the reference allows a single sum.
    """
    spec = catalog.in_row_groups(grouped.reduced_every_way(SUMMED[kind]), by)
    counts = [37, 0, spec.tile.m + 5, 1, 300, 64]
    layout = grouped.layout_by(by, counts, ALIGNMENT, spare=3)
    stored = spec.output.name if kind == "fp8" else None
    problem = grouped.Problem(
        dense(spec), spec, layout, n=648, k=400, launch=partial(on_gpu, spec), reductions_of=stored
    )
    first, second = problem.run(), problem.run()
    for left, right in zip(first, second, strict=True):
        assert all(torch.equal(_bytes(left[name]), _bytes(right[name])) for name in left)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_random_layouts(form: str, kind: str) -> None:
    draw = random.Random(f"{form} {kind}")
    for turn in range(LAYOUTS):
        layout = layout_drawn(form, draw)
        n, k = 8 * draw.randint(1, 50), 16 * draw.randint(1, 40)
        rows = Rows.drawn(form, kind, layout, n, k)
        d = rows.output()
        rows.launch(d, draw.choice([None, 1, 64, 300]))
        wanted = rows.expected()
        assert torch.equal(_bytes(d), _bytes(wanted)), f"{form}, {kind}, turn {turn}: {layout.spans}, n={n}, k={k}"


FOUND = {
    "fp8, 192 rows from multiples of 128": (catalog.fp8_gemm_nt(FP8_FINE), 128),
    "fp8, 128 from 64": (catalog.fp8_gemm_nt(FP8_SHAPES[0]), 64),
    "fp8, 32 from 48": (catalog.fp8_gemm_nt(SWAPPED_SHAPES[-1]), 48),
    "bf16, 128 from 16": (catalog.bf16_gemm("nt", BF16_SHAPES[0]), 16),
}


@pytest.mark.parametrize("what", FOUND)
def test_random_layouts_of_groups_that_a_launch_finds(what: str) -> None:
    """By ids, tiles that do not divide what groups start at multiples of; more parts than threads, at times."""
    (dense, alignment), draw, kind = FOUND[what], random.Random(what), what.split(",")[0]
    launch, scaled = gemmgen.op(catalog.in_row_groups(dense, "ids", alignment)), kind == "fp8"
    for turn in range(LAYOUTS):
        counts = [draw.choice([0, 0, 1, draw.randint(0, 900)]) for _ in range(draw.randint(1, 12))]
        layout = ids(counts, alignment, draw.choice([0, 1, 290]) or not any(counts))
        rows = Rows.drawn("ids", kind, layout, 8 * draw.randint(1, 50), 16 * draw.randint(1, 24))
        d = rows.output()
        (a, sfa), (b, sfb) = (rows.a, rows.b) if scaled else ((rows.a, None), (rows.b, None))
        launch(a=a, b=b, d=d, layout=rows.given, **({"sfa": sfa, "sfb": sfb} if scaled else {}))
        assert torch.equal(_bytes(d), _bytes(rows.expected())), f"turn {turn}: {layout.spans}, {d.shape}"


@pytest.mark.parametrize(("kind", "psum"), [("fp8", False), ("bf16", False), ("bf16", True)])
def test_random_groups_of_k(kind: str, psum: bool) -> None:
    draw = random.Random(f"k {kind} {psum}")
    for turn in range(LAYOUTS):
        unit = 128 if kind == "fp8" else 1
        counts = [count // (100 if unit > 1 else 1) * unit for count in counts_drawn(draw)]
        problem = Ks.drawn(kind, psum, counts, 8 * draw.randint(1, 50), 8 * draw.randint(1, 50))
        d = problem.before.clone()
        problem.launch(d)
        assert torch.equal(d, problem.expected()), f"{kind}, psum={psum}, turn {turn}: {counts}, {tuple(d.shape)}"


@pytest.mark.parametrize("kind", KINDS)
def test_random_groups_of_k_that_tma_cannot_store(kind: str) -> None:
    """Rows of D of any length, a number apart that stays as it was; those of fp8 have any number of columns."""
    draw = random.Random(f"k {kind} direct")
    for turn in range(LAYOUTS):
        unit, columns = (128, draw.randint(1, 400)) if kind == "fp8" else (1, 8 * draw.randint(1, 50))
        counts = [count // (100 if unit > 1 else 1) * unit for count in counts_drawn(draw)]
        problem = Ks.drawn(kind, False, counts, 8 * draw.randint(1, 50), columns)
        groups, m, n = problem.before.shape
        wide = torch.full((groups, m, n + 1 + n % 2), 3.0, device=CUDA)
        d = wide[:, :, :n]
        d.copy_(problem.before)
        problem.launch(d)
        assert torch.equal(d, problem.expected()), f"{kind}, turn {turn}: {counts}, {tuple(d.shape)}"
        assert (wide[:, :, n:] == 3).all()


def same_extent(form: str, draw: random.Random, groups: int, m: int) -> Layout:
    """A layout of so many groups that fits m rows."""
    if form == "masked":
        return counts_of([draw.choice([0, 1, draw.randint(0, m)]) for _ in range(groups)], m)
    if form == "ids":
        blocks = [draw.randint(0, m // ALIGNMENT // groups) for _ in range(groups)]
        counts = [max(0, each * ALIGNMENT - draw.randrange(ALIGNMENT)) for each in blocks]
        used = sum(-(-count // ALIGNMENT) for count in counts)
        return ids(counts, ALIGNMENT, m // ALIGNMENT - used)
    cuts = sorted(draw.randint(0, m) for _ in range(groups))
    counts = [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
    found = ends(counts)
    return ends(counts, 1, m - found.m)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["ids", "offsets", "masked"])
def test_a_graph_whose_layouts_change(form: str, kind: str) -> None:
    """One capture, a thousand replays, each with other groups on the device."""
    draw, groups, m = random.Random(f"graph {form} {kind}"), 6, 768
    rows = Rows.drawn(form, kind, same_extent(form, draw, groups, m), 264, 320, poisoned=False)
    d = rows.output()
    rows.launch(d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows.launch(d)
    untouched = d.clone().fill_(rows.output().flatten()[0].item())
    wrong = torch.zeros((), dtype=torch.int64, device=CUDA)
    for _ in range(REPLAYS):
        layout = same_extent(form, draw, groups, m)
        rows.given.copy_(layout.given)
        d.copy_(untouched)
        graph.replay()
        wrong += (d.view(torch.int16) != rows.expected(layout).view(torch.int16)).sum()
    assert int(wrong) == 0


def test_groups_of_k_in_a_graph() -> None:
    """Sizes on the device change under a graph; nobody knows them on the host."""
    draw, groups, k, m, n = random.Random("graph of k"), 5, 1024, 136, 264
    a, b = whole(k, m).bfloat16(), whole(k, n).bfloat16()
    given, d = torch.zeros(groups, dtype=torch.int32, device=CUDA), torch.zeros(groups, m, n, device=CUDA)
    ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, given, d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, given, d)
    prefix = torch.cat([torch.zeros(1, m, n, device=CUDA), (a.float()[:, :, None] * b.float()[:, None, :]).cumsum(0)])
    for _ in range(REPLAYS // 10):
        cuts = [0, *sorted(draw.randint(0, k) for _ in range(groups))]
        sizes = [end - start for start, end in pairwise(cuts)]
        given.copy_(torch.tensor(sizes, dtype=torch.int32))
        d.fill_(1.0)
        graph.replay()
        wanted = torch.stack([prefix[end] - prefix[start] for start, end in pairwise(cuts)]) + 1
        assert torch.equal(d, wanted)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 32, 256), (200, 136, 1024), (2048, 4096, 512)])
def test_dense_sums_in_place(m: int, n: int, k: int) -> None:
    """A group of all k, through the dense operators: exact, and equal bit for bit when repeated."""
    a, b, before = whole(m, k), whole(n, k), whole(m, n)
    sfa, sfb = powers(m, k // 128), powers(n, k // 128)
    eight = [(x.to(torch.float8_e4m3fn), sf) for x, sf in ((a, sfa), (b, sfb))]
    wide = (a * sfa.repeat_interleave(128, 1)) @ (b * sfb.repeat_interleave(128, 1)).T
    for product, run in (
        (wide, lambda d: ops.fp8_gemm_nt(*eight, d, c=d)),
        (a @ b.T, lambda d: ops.bf16_gemm_nt(a.bfloat16(), b.bfloat16(), d, c=d)),
    ):
        first, second = before.clone(), before.clone()
        run(first)
        run(second)
        assert torch.equal(first, before + product) and torch.equal(first, second)


def test_k_grouped_kernels_are_what_gradients_take() -> None:
    """The kernels that are written out, at a size for each: exact, in place and bit for bit equal when repeated."""
    assert [spec for spec in HOPPER if isinstance(spec.groups, KGroups)]
    for kind, m, n in [
        ("bf16", 64, 32),
        ("bf16", 1024, 2048),
        ("bf16", 2048, 4096),
        ("fp8", 64, 32),
        ("fp8", 2048, 4096),
    ]:
        problem = Ks.drawn(kind, False, [256, 0, 128, 512], m, n)
        first, second = problem.before.clone(), problem.before.clone()
        problem.launch(first)
        problem.launch(second)
        assert torch.equal(first, problem.expected()) and torch.equal(first, second)


def test_gradients_where_a_warpgroup_has_no_rows_repeat() -> None:
    """Slots go back sooner there: a kernel that read scales too late had faults in 6 to 32 % of such launches."""
    counts, (m, n) = [2176, 2048] * 4, (2432, 5888)
    assert fp8_apart_tile(m, n, sum(counts) // len(counts), len(counts)) == (256, 128) and m % 256 == 128
    problem = Ks.drawn("fp8", False, counts, m, n)
    wanted, d = problem.expected(), problem.before.clone()
    for turn in range(REPLAYS // 4):
        d.copy_(problem.before)
        problem.launch(d)
        assert torch.equal(d, wanted), f"turn {turn}"


def fp8_apart_tile(m: int, n: int, k: int, groups: int) -> tuple[int, int]:
    """The tile that the rule takes for gradients of so many groups alike."""
    shapes = catalog.gradient_shapes(DType.E4M3, False, added=True)
    shape = min(shapes, key=lambda each: cost(each, m, n, k, 132, True, groups).key)
    return shape.m, shape.n


def _row_major_and_turned(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    scales = torch.rand(*shape, device=CUDA) + 0.5
    return scales, scales.mT.contiguous().mT


@pytest.mark.parametrize("form", ["offsets", "masked", "k"])
def test_scales_that_are_turned_first(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups large enough: the bits of scales that lie along m and n from the start."""
    turned, copy = list[torch.Size](), copies.turned
    monkeypatch.setattr(copies, "turned", lambda scales: (turned.append(scales.shape), copy(scales))[1])
    counts, n, k = (1500, 0, 2048, 33), 4096, 4096
    if form == "k":
        k, ks = 16384, [4096, 0, 8192, 4096]
        (sfa, along_m), (sfb, along_n) = (_row_major_and_turned(rows, k // 128) for rows in (2048, n))
        a, b = (torch.randn(rows * k, device=CUDA).to(torch.float8_e4m3fn) for rows in (2048, n))
        layout = torch.tensor(ks, device=CUDA, dtype=torch.int32)
        found = [torch.zeros(4, 2048, n, device=CUDA) for _ in range(2)]
        for d, scales in zip(found, ((sfa, sfb), (along_m, along_n)), strict=True):
            ops.k_grouped_fp8_gemm_nt_contiguous((a, scales[0]), (b, scales[1]), d, ks, layout, d)
        assert torch.equal(*found) and found[0].any() and set(turned) == {sfa.shape, sfb.shape}
        return
    lead = (4, 2048) if form == "masked" else (sum(counts),)
    a, b = torch.randn(*lead, k, device=CUDA), torch.randn(4, n, k, device=CUDA)
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    sfa, along_m = _row_major_and_turned(*lead, k // 128)
    sfb = torch.rand(4, n // 128, k // 128, device=CUDA)
    found = [torch.zeros(*lead, n, device=CUDA, dtype=torch.bfloat16) for _ in range(2)]
    for d, scales in zip(found, (sfa, along_m), strict=True):
        if form == "masked":
            given = torch.tensor(counts, device=CUDA, dtype=torch.int32)
            ops.m_grouped_fp8_gemm_nt_masked((a, scales), (b, sfb), d, given, 2048)
        else:
            given = torch.tensor(counts, device=CUDA, dtype=torch.int32).cumsum(0, dtype=torch.int32)
            ops.m_grouped_fp8_gemm_nt_contiguous((a, scales), (b, sfb), d, given, offsets=True)
    assert torch.equal(*found) and found[0].any() and set(turned) == {sfa.shape}
