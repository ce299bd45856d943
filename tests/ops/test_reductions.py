"""What epilogues reduce: right on ragged problems in every form, and the same bits whoever comes last."""

from __future__ import annotations

import chains
import pytest
import reduced
import torch
from chains import reduction
from opchecks import opcheck

import gemmgen
from gemmgen.catalog import dense, dense_sm100, dense_sm120
from gemmgen.catalog.dense import Shape
from gemmgen.catalog.dense_sm100 import PairShape
from gemmgen.catalog.dense_sm120 import WarpShape
from gemmgen.catalog.prenorm import PrenormShape, tf32_hc_prenorm_gemm
from gemmgen.ir import Arch, Cast, DType, Epilogue, KernelSpec, Operand, Quantise, Reduce, Store

LINKS = [
    chains.bias(0, "n"),
    reduction(1, "amax", "n"),
    chains.activation("relu"),
    reduction(2, "sum_of_squares", "mn"),
    reduction(3, "sum", "m"),
]


def with_links(base: KernelSpec, links: list[chains.Link]) -> KernelSpec:
    """The kernel with these links before its cast."""
    extra = tuple(operand for link in links for operand in link.operands)
    chain = (*(link.step for link in links), *base.epilogue)
    return base.replace(name="reducing", operands=(*base.operands, *extra), epilogue=chain)


def narrow(base: KernelSpec) -> KernelSpec:
    """The kernel with an output in MXFP8."""
    last = base.epilogue[-1]
    d = Operand(name="d", dtype=DType.E4M3, box=("m", "n"))
    scales = Operand(name="d_sf", dtype=DType.UE8M0, box=("m", "n/32"))
    quantise = Quantise(to="d", scales="d_sf", through=getattr(last, "through", None))
    kept = tuple(step for step in base.epilogue[:-1] if not isinstance(step, Cast))
    return base.replace(operands=(*base.operands[:-1], d, scales), epilogue=(*kept, quantise))


def bf16_90(m: int, n: int, **fields: object) -> KernelSpec:
    return dense.bf16_gemm("nt", Shape(m, n, **fields))  # type: ignore[arg-type]


def bf16_120(m: int, n: int, **fields: object) -> KernelSpec:
    return dense_sm120.bf16_gemm("nt", WarpShape(m, n, slots=2, **fields))  # type: ignore[arg-type]


FORMS = {
    "sm90, two blocks of rows": (bf16_90(128, 32, groups=1), 150, 88),
    "sm90, two units of columns": (bf16_90(64, 64, groups=1, width=32), 70, 136),
    "sm90, two CTAs share B": (bf16_90(128, 32, cluster=(2, 1)), 150, 72),
    "sm90, two CTAs share A": (bf16_90(64, 32, groups=1, cluster=(1, 2)), 70, 72),
    "sm90, from registers": (dense.bf16_gemm("nt", Shape(64, 32, groups=1), direct_store=True), 70, 61),
    "sm90, MXFP8": (narrow(bf16_90(64, 64, groups=1)), 70, 112),
    "sm90, MXFP8 from registers": (
        narrow(dense.bf16_gemm("nt", Shape(64, 64, groups=1), direct_store=True)),
        70,
        90,
    ),
    "sm100, a pair of CTAs": (dense_sm100.bf16_gemm("nt", PairShape(32, 2)), 150, 72),
    "sm100, launch control": (dense_sm100.bf16_gemm("nt", PairShape(48, launch_control=True)), 150, 72),
    "sm100, from registers": (dense_sm100.bf16_gemm("nt", PairShape(32), direct_store=True), 130, 61),
    "sm100, MXFP8": (narrow(dense_sm100.bf16_gemm("nt", PairShape(64))), 130, 112),
    "sm100, MXFP8 from registers": (
        narrow(dense_sm100.bf16_gemm("nt", PairShape(64), direct_store=True)),
        130,
        90,
    ),
    "sm120, two blocks of rows": (bf16_120(64, 32, warps=(2, 1)), 70, 72),
    "sm120, warps side by side": (bf16_120(16, 64, warps=(1, 4)), 37, 88),
    "sm120, three CTAs share K": (bf16_120(32, 32, warps=(2, 2), splits=3), 40, 72),
    "sm120, from registers": (dense_sm120.bf16_gemm("nt", WarpShape(32, 32, (2, 2)), direct_store=True), 37, 45),
    "sm120, MXFP8": (narrow(bf16_120(32, 64, warps=(2, 2))), 40, 112),
}


def run(spec: KernelSpec, sizes: dict[str, int], schedule: str, sms: int) -> dict[str, torch.Tensor]:
    """Outputs of a run whose reductions were written and nothing around them."""
    tensors, scalars = chains.data(spec, sizes, 3)
    tensors["b"] = tensors["b"].bfloat16().to(tensors["b"].dtype)  # fp32 factors are read as tf32
    rooms = {each.name: chains.Room(each, sizes, "cpu") for each in spec.outputs if each.name.startswith("reduced")}
    outputs = {name: each.output for name, each in rooms.items()}
    with gemmgen.simulate(str(spec.arch), schedule=schedule, seed=1, sms=sms) as simulation:
        gemmgen.op(spec)(**tensors, **scalars, **outputs)
    assert not [warning for report in simulation.reports for warning in report.warnings]
    for room in rooms.values():
        room.check_untouched()
    reduced.check_reductions(outputs, spec, tensors, scalars)
    return outputs


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reduces_ragged_problems_to_the_same_bits(form: str) -> None:
    base, m, n = FORMS[form]
    spec, sizes = with_links(base, LINKS), {"m": m, "n": n, "k": 40}
    size = spec.cluster.size
    one, other = (run(spec, sizes, *how) for how in (("early", size), ("starve", 3 * size)))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_splits_that_the_launch_decides_on() -> None:
    """Their number, and so the bits, depend on the GPU; warps whose rows are all outside the matrix come too."""
    spec = with_links(tf32_hc_prenorm_gemm(PrenormShape(64, 16)), LINKS)
    one, other = (run(spec, {"m": 70, "n": 24, "k": 640}, schedule, 9) for schedule in ("late", "random"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ValueError, match=r"every output of a schedule .* has the axis 's'"):
        with_links(tf32_hc_prenorm_gemm(PrenormShape(64, 16), slices=True), LINKS[1:2])


@pytest.mark.parametrize("arch", chains.BASES)
def test_amax_is_that_of_the_stored_numbers(arch: str) -> None:
    """Bit for bit; NaN is above Inf, and a row or column with neither shows none."""
    links = [reduction(0, "amax", "n"), reduction(1, "amax", "m"), reduction(2, "amax", "mn"), reduction(3, "sum", "n")]
    spec = chains.chained(arch, DType.F32, links)
    tensors, _ = chains.data(spec, {"m": 70, "n": 40, "k": 16}, 5)
    a, b = tensors.values()
    b.abs_()
    with gemmgen.simulate(arch, sms=2):
        for row, column, value in ((0, 0, 1.0), (7, 0, -torch.inf), (3, 1, torch.nan)):
            a[row, column] = value
            d, rows, columns, whole, sums = gemmgen.op(spec)(a=a, b=b)
            assert torch.equal(rows.nan_to_num(-1), d.abs().amax(1).nan_to_num(-1))
            assert torch.equal(columns.nan_to_num(-1), d.abs().amax(0).nan_to_num(-1))
            assert torch.equal(whole.nan_to_num(-1), d.abs().amax().nan_to_num(-1))
    assert rows.isnan().nonzero().tolist() == sums.isnan().nonzero().tolist() == [[3]]
    assert columns.isnan().all() and whole.isnan() and rows[7] == torch.inf and sums[7] == -torch.inf


@pytest.mark.parametrize("arch", chains.BASES)
def test_nothing_to_reduce_is_zero(arch: str) -> None:
    spec = chains.chained(
        arch, DType.F32, [reduction(0, "sum", "n"), reduction(1, "amax", "mn"), reduction(2, "sum", "m")]
    )
    a, b = torch.randn(5, 0).bfloat16(), torch.randn(8, 0).bfloat16()
    with gemmgen.simulate(arch):
        no_k = gemmgen.op(spec)(a=a, b=b)
        no_n = gemmgen.op(spec)(a=torch.randn(5, 16).bfloat16(), b=torch.randn(0, 16).bfloat16())
        no_m = gemmgen.op(spec)(a=torch.randn(0, 16).bfloat16(), b=torch.randn(8, 16).bfloat16())
    assert all(bool((each == 0).all()) for each in (*no_k, *no_n, *no_m))
    assert [tuple(each.shape) for each in no_n] == [(5, 0), (5,), (), (0,)]


def test_compilers_see_reductions_as_outputs() -> None:
    spec = chains.chained("sm90", DType.BF16, [reduction(0, "sum", "m"), reduction(1, "amax", "mn")])
    tensors, _ = chains.data(spec, {"m": 8, "n": 16, "k": 16}, 1)
    with gemmgen.simulate("sm90"):
        op = gemmgen.op(spec)
        opcheck(op._returning, tensors["a"], tensors["b"])
        outputs = torch.empty(8, 16).bfloat16(), torch.empty(16), torch.empty(())
        opcheck(op._writing, tensors["a"], tensors["b"], *outputs)


def test_behind_a_shipped_product() -> None:
    """Few rows, for which sm120 would swap: a kernel that can reduce is taken. The stored output comes first."""
    d, sums = Operand(name="d", dtype=DType.F32, box=("m", "n")), Operand(name="sums", dtype=DType.F32, box=("m",))
    steps = (Reduce(function="sum", along="n", to="sums"), Store(to="d"))
    call = gemmgen.fuse("bf16_gemm_nt", Epilogue(name="summed", operands=(sums, d), steps=steps))
    a, b = torch.randn(3, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    with gemmgen.simulate("sm120"):
        found, summed = call(a, b)
        nothing, zeros = call(a, b[:0])
    torch.testing.assert_close(found, a.float() @ b.float().T)
    torch.testing.assert_close(summed, found.sum(1))
    assert nothing.shape == (3, 0) and zeros.tolist() == [0.0, 0.0, 0.0]


SWAPPED = {
    "sm100": dense_sm100.bf16_gemm("nt", PairShape(32, swap=True)),
    "sm120": dense_sm120.bf16_gemm("nt", WarpShape(16, 32, (2, 1), swap=True)),
}


@pytest.mark.parametrize("arch", SWAPPED)
def test_swapped_products_are_refused(arch: Arch) -> None:
    spec = with_links(SWAPPED[arch], [reduction(0, "sum", "n")])
    with pytest.raises(ValueError, match=r"reduces to 'reduced0', but swap_ab puts n on the rows .* do not swap"):
        gemmgen.op(spec)
