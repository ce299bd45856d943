"""``run`` and ``check``: right kernels are called right, wrong ones wrong, on any size, and each says how it knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from planting import planted

from gemmgen import catalog
from gemmgen.commands import checking, inputs, reference, running
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Activation, Apply, DType, Keep, KernelSpec, Operand, Reduce

NAME = "sm90_fp8_gemm_nt_bf16_64x32"
Command = Callable[..., Any]


def test_run_reports_device_error_and_verdict(gemmgen: Command) -> None:
    done = gemmgen("run", NAME, "-m", 70, "-n", 40, "-k", 200, "--on", "sim", "--seed", 3, "--schedule", "late")
    assert done.status == 0, done.err
    rows = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert rows["kernel"] == NAME
    assert rows["problem"] == "m=70 n=40 k=200, normal random input, seed 3"
    assert rows["device"].startswith("simulator of sm90, schedule late")
    assert rows["result"] == "right"
    assert 1e-4 < float(rows["error"].split()[0]) < 6e-3
    assert 0 < float(rows["calc_diff"]) < 1e-5


def test_an_op_name_runs_the_kernel_it_would_choose(gemmgen: Command) -> None:
    done = gemmgen("run", "bf16_gemm_tn", "-m", 33, "-n", 24, "-k", 72, "--on", "sim")
    assert done.status == 0, done.err
    assert "sm90_bf16_gemm_tn_bf16_" in done.out and "right" in done.out


@pytest.mark.parametrize("blocks", [1, 2, 5, 8, 9, 17, 33])
def test_any_number_of_k_blocks_gives_the_right_sum(gemmgen: Command, blocks: int) -> None:
    """Around the ring's depth and the loop's unrolling; the kernel is one and the same, K is a run-time value."""
    done = gemmgen("run", "sm90_fp8_gemm_nt_bf16_64x16", "-m", 5, "-n", 16, "-k", 128 * blocks, "--on", "sim")
    assert done.status == 0, done.out + done.err


@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 128), (8, 0, 128), (3, 8, 0)])
def test_empty_problems(gemmgen: Command, m: int, n: int, k: int) -> None:
    done = gemmgen("run", NAME, "-m", m, "-n", n, "-k", k, "--on", "sim")
    assert done.status == 0, done.err
    assert "error      0.00e+00" in done.out


def test_a_wrong_kernel_is_called_wrong(gemmgen: Command, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(monkeypatch, "gemmgen::add(x1, gemmgen::load_columns(p.bias, n, p.n))", "x1"):
        done = gemmgen("run", example, "-m", 64, "-n", 64, "-k", 64, "--on", "sim")
    assert done.status == 1
    assert "WRONG" in done.out
    assert "the result is not the reference's; worst tile error" in done.err


def test_check_shows_a_table_of_sizes_and_schedules(gemmgen: Command, example: str) -> None:
    done = gemmgen("check", example)
    assert done.status == 0, done.out + done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0][:3] == ["kernel", "chip", "seconds"]
    runs = [row for row in rows if row[-1] == "right"]
    assert len(runs) == 16 and {row[-2] for row in runs} == {"0"}
    assert [row[5] for row in runs[:4]] == ["early", "late", "random", "starve"]


def test_check_shows_what_the_simulator_warns_of(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(monkeypatch, "store.finish();", ""):
        done = gemmgen("check", NAME)
    warned = [line for line in done.out.splitlines() if line.startswith("warning in ")]
    assert any("exits while bulk stores may still read shared memory" in line for line in warned), done.out
    assert any(row.split()[-2] == "1" for row in done.out.splitlines() if row.endswith("right"))


def test_check_finds_a_wait_that_is_missing(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = "if (!ready) ptx::mbarrier_wait(gemmgen::bar(ab::FULL, at.slot), at.phase);"
    with planted(monkeypatch, wait, ""):
        done = gemmgen("check", NAME)
    assert done.status == 1
    assert "of 16 simulated runs failed" in done.err
    assert "Race" in done.out or "Fault" in done.out or "wrong" in done.out


def test_on_gpu_without_one_says_so(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = gemmgen("run", NAME, "--on", "gpu")
    assert done.status == 1
    assert "--on gpu: torch finds no CUDA device; use --on sim" in done.err


@pytest.mark.parametrize(
    ("capability", "on", "device"),
    [((9, 0), "auto", "cuda:0"), ((9, 0), "gpu", "cuda:0"), ((9, 0), "sim", "cpu"), ((8, 0), "auto", "cpu")],
)
def test_auto_takes_the_gpu_that_the_kernel_is_written_for(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], on: str, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert running._device(on, catalog.specs()[NAME]) == torch.device(device)


def test_ragged_sizes_lie_around_the_tile() -> None:
    for spec in list(catalog.specs().values())[::7]:
        tile, sizes = spec.tile, checking.ragged_sizes(spec)
        whole = inputs.k_step(spec) % tile.k == 0  # 4-bit numbers beside 8-bit ones come in blocks of k
        assert any(s.m % tile.m and s.n % tile.n and (whole or s.k % tile.k) for s in sizes)
        assert all(s.k % inputs.k_step(spec) == 0 for s in sizes)
        assert any(s.m > tile.m and s.n > tile.n and s.k > tile.k for s in sizes)
        assert any(s.m < tile.m and s.n < tile.n for s in sizes)
        assert any(s.k == 0 for s in sizes)


def test_the_reference_is_the_plain_product_of_dequantised_inputs() -> None:
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1))
    operands = inputs.random_operands(spec, {"m": 5, "n": 130, "k": 200}, seed=0)
    a, sfa, b, sfb = (operands[name].double() for name in ("a", "sfa", "b", "sfb"))  # type: ignore[union-attr]
    assert (a.shape, sfa.shape, sfb.shape) == ((5, 200), (5, 2), (2, 2))
    result = reference.reference(spec, operands)
    for i, j in [(0, 0), (4, 127), (1, 128), (2, 129)]:
        terms = [a[i, k] * b[j, k] * sfa[i, k // 128] * sfb[j // 128, k // 128] for k in range(200)]
        torch.testing.assert_close(result[i, j], sum(terms), rtol=1e-12, atol=1e-12)


def test_random_input_is_the_same_for_the_same_seed_and_uses_the_whole_range() -> None:
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1))
    sizes = {"m": 64, "n": 128, "k": 256}
    first, again, other = (inputs.random_operands(spec, sizes, seed) for seed in (1, 1, 2))
    for name in ("a", "sfa", "b", "sfb"):
        assert torch.equal(first[name].float(), again[name].float())  # type: ignore[union-attr]
        assert not torch.equal(first[name].float(), other[name].float())  # type: ignore[union-attr]
    assert first["a"].float().abs().max() == inputs.LARGEST[DType.E4M3]  # type: ignore[union-attr]
    assert first["d"].isnan().all()  # type: ignore[union-attr]


def test_errors_see_one_wrong_corner_in_a_large_result() -> None:
    expected = torch.randn(300, 300, dtype=torch.float64)
    result = expected.clone()
    assert reference.compare(result, expected) == reference.Errors(0.0, 0.0)
    result[299, 299] += 5
    errors = reference.compare(result, expected)
    assert errors.worst_tile > 0.1 and errors.calc_diff < 1e-3
    result[0, 0] = float("nan")
    assert not reference.compare(result, expected).worst_tile <= 1.0


def test_what_is_no_number_has_to_be_the_same_on_both_sides() -> None:
    nan, inf = float("nan"), float("inf")
    expected = torch.tensor([[nan, inf, -inf, 1.0]], dtype=torch.float64)
    assert reference.compare(expected.float(), expected) == reference.Errors(0.0, 0.0)
    off = reference.compare(torch.tensor([[nan, inf, -inf, 1.5]]), expected)
    assert off.worst_tile == 0.5 and not off.remark  # infinity in the tile's norm would hide it
    for wrong in ([nan, inf, -inf, nan], [nan, inf, -inf, inf], [0.0, inf, -inf, 1.0], [nan, -inf, -inf, 1.0]):
        errors = reference.compare(torch.tensor([wrong]), expected)
        assert (errors.worst_tile, errors.apart) == (inf, 1)
        assert errors.remark == ", 1 elements are NaN or infinite on one side only"


def applying(expression: str, *operands: Operand, base: str = "sm90_bf16_gemm_nt_f32_64x32") -> KernelSpec:
    """A shipped product, and an expression of its sums."""
    spec = catalog.specs()[base]
    step = Apply(expression=expression)
    return spec.replace(name="applying", operands=(*spec.operands, *operands), epilogue=(step, *spec.epilogue))


ALPHA = Operand(name="alpha", dtype=DType.F32, box=())
NUMBERS = {
    "acc * sqrt(2 / 3.14159)": (),
    "silu(2) * acc + where(1 > 0, acc, 0)": (),
    "acc + 1 / 0": (),
    "0 / 0": (),
    "where(alpha > 0, acc * exp(alpha), maximum(alpha, 1)) - abs(alpha)": (ALPHA,),
    "log(acc) + rsqrt(acc)": (),
    "acc / (acc - acc)": (),
}


@pytest.mark.parametrize("expression", NUMBERS)
def test_functions_of_constants_and_scalars_and_what_is_no_number(expression: str) -> None:
    spec = applying(expression, *NUMBERS[expression])
    for sizes in (Sizes(127, 56, 48), Sizes(5, 8, 0)):
        assert not running.execute(spec, sizes, torch.device("cpu"), "early", seed=1).wrong


@pytest.mark.parametrize(
    "expression",
    [
        "exp(acc * acc) / exp(acc * acc)",
        "acc * 1e30 * 1e30 * 1e-30",
        "acc * 1e-30 * 1e-30 * 1e30 * 1e30",
        "exp(acc * acc) * exp(-acc * acc)",
        "log(exp(-acc * acc))",
        "rsqrt(acc * acc * 1e38)",
    ],
)
def test_fp32_ends_inside_an_expression_too(expression: str) -> None:
    """Where float64 does not."""
    outcome = running.execute(applying(expression), Sizes(66, 40, 400), torch.device("cpu"), "early", seed=1)
    assert not outcome.wrong, outcome.errors


def test_numbers_inside_of_fp32_get_no_slack() -> None:
    spec = applying("exp(acc) / exp(acc) * acc")
    operands = inputs.random_operands(spec, {"m": 66, "n": 40, "k": 64}, 1)
    assert not reference.slack_of(spec, operands).any()


def test_only_rounding_of_the_sums_is_forgiven_and_only_at_an_edge() -> None:
    """Sums of 1e-5 times their root mean square: bf16 products summed in fp32 are not told from 0 there."""
    spec, plain = applying("log(acc)"), applying("acc * sqrt(2 / 3)")
    a, b = torch.ones(4, 64), torch.zeros(8, 64)
    b[:, 0], b[0, 0], b[1, 0] = 1.0, 1e-5, -1.0
    operands = {"a": a.bfloat16(), "b": b.bfloat16()}
    expected, slack = reference.reference(spec, operands), reference.slack_of(spec, operands)
    assert expected.isfinite()[:, 0].all() and expected[:, 1].isnan().all() and not expected[:, 2:].any()
    assert slack[:, 0].isinf().all() and not slack[:, 1].any()
    assert 5e-5 < slack[:, 2:].min() <= slack[:, 2:].max() < 2e-4
    result = expected.clone()
    result[:, 0] = torch.nan
    assert reference.compare(result, expected, slack).worst_tile == 0
    for column, number in ((1, 0.0), (2, torch.nan), (2, 1e-3)):
        wrong = result.clone()
        wrong[0, column] = number
        assert reference.compare(wrong, expected, slack).worst_tile > reference.tolerance(spec)
    assert not reference.slack_of(plain, operands).any()


@pytest.mark.parametrize("expression", ["1 / acc", "rsqrt(acc * acc)", "acc / (1 + acc * acc)"])
def test_what_is_large_near_an_edge_does_not_hide_the_rest(expression: str) -> None:
    """Rounding to bf16 where fp32 is stored, or half of the elements off by 2 %."""
    spec = applying(expression)
    operands = inputs.random_operands(spec, {"m": 128, "n": 128, "k": 256}, 0)
    expected, slack = reference.reference(spec, operands), reference.slack_of(spec, operands)
    smaller = expected.abs() < expected.abs().median()
    assert reference.compare(expected.float(), expected, slack).worst_tile <= reference.tolerance(spec)
    for wrong in (expected.bfloat16(), expected.where(~smaller, expected * 1.02)):
        assert reference.compare(wrong, expected, slack).worst_tile > reference.tolerance(spec)


def test_divisors_that_are_never_0_are_no_edge() -> None:
    for expression in ("acc / (1 + acc * acc)", "acc / (1 + exp(-acc))", "1 / (abs(acc) + 0.5)"):
        assert not reference.has_edges(applying(expression))
    for expression in (
        "1 / acc",
        "1 / (1 + acc)",
        "1 / (acc * acc)",
        "1 / (abs(acc) + acc * acc)",
        "1 / (1 - acc * acc)",
    ):
        assert reference.has_edges(applying(expression))


def test_a_wrong_log_is_called_wrong(gemmgen: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(applying("log(acc)").to_json())
    words = ("run", path, "-m", 64, "-n", 32, "-k", 64, "--on", "sim")
    right = gemmgen(*words)
    assert right.status == 0 and "give or take what rounding of the sums may move it by" in right.out
    with planted(monkeypatch, "gemmgen::log(acc)", "gemmgen::log(fabsf(acc))"):
        wrong = gemmgen(*words)
    assert wrong.status == 1 and "elements are NaN or infinite on one side only" in wrong.err


@pytest.mark.parametrize("function", ["sum", "sum_of_squares", "amax"])
def test_reductions_of_infinite_sums_are_judged(function: str) -> None:
    spec = catalog.specs()["sm90_bf16_gemm_nt_bf16_64x32"]
    reduce = Reduce(function=function, along="n", to="sums")  # type: ignore[arg-type]
    sums = Operand(name="sums", dtype=DType.F32, box=("m",))
    spec = spec.replace(operands=(*spec.operands, sums), epilogue=(reduce, *spec.epilogue))
    operands = inputs.random_operands(spec, {"m": 70, "n": 8, "k": 72}, 1)
    operands["a"][0, 0] = torch.inf  # type: ignore[index]
    operands["sums"] = torch.zeros(70)
    assert reference.reduction_errors(spec, operands)["sums"].apart == 1


def test_reductions_of_what_is_no_number() -> None:
    """Sums and the largest magnitude of logarithms of normal sums are NaN, rows without a negative one aside."""
    spec = applying("log(acc)")
    sums = Operand(name="sums", dtype=DType.F32, box=("m",))
    step, *rest = spec.epilogue
    reduce = Reduce(function="amax", along="n", to="sums")
    spec = spec.replace(operands=(*spec.operands, sums), epilogue=(step, reduce, *rest))
    outcome = running.execute(spec, Sizes(70, 8, 72), torch.device("cpu"), "early", seed=1)
    assert not outcome.wrong and outcome.results[1].isnan().any()
    found = {"sums": outcome.results[1].clone()}
    found["sums"][:] = 1.0
    operands = {**inputs.random_operands(spec, {"m": 70, "n": 8, "k": 72}, 1), **found}
    assert reference.reduction_errors(spec, operands)["sums"].apart > 0


@pytest.mark.parametrize("function", ["sum", "sum_of_squares", "amax"])
def test_reductions_near_an_edge_are_forgiven_what_rounding_moves(function: str) -> None:
    """A sum of -1e-5 times the root mean square has no logarithm, or has one; others have, and are judged."""
    spec = applying("log(acc)")
    step, *rest = spec.epilogue
    reduced = Operand(name="reduced", dtype=DType.F32, box=("m",))
    reduce = Reduce(function=function, along="n", to="reduced")  # type: ignore[arg-type]
    spec = spec.replace(operands=(*spec.operands, reduced), epilogue=(step, reduce, *rest))
    a, b = torch.ones(4, 64), torch.zeros(8, 64)
    a[2:], b[:, 0], b[0, 1] = 0.0, 2.0, -2.00001
    a[2:, 0] = 1.0  # rows without what cancels
    numbers: inputs.Operands = {"a": a.bfloat16(), "b": b.double()}
    expected = reference.reference(spec, numbers, "reduced")
    assert expected[:2, 0].isnan().all() and expected[2:].isfinite().all()
    right = {"sum": expected.sum(1), "sum_of_squares": expected.square().sum(1), "amax": expected.abs().amax(1)}[
        function
    ]
    for of_first in (torch.nan, 0.0):
        result = right.clone()
        result[:2] = of_first
        assert reference.reduction_errors(spec, {**numbers, "reduced": result})["reduced"].worst_tile < 1e-6
    for wrong in (torch.nan, 3.0):
        result = right.clone()
        result[3] = wrong
        assert reference.reduction_errors(spec, {**numbers, "reduced": result})["reduced"].worst_tile > 0.01


def test_sizes_are_hashable_keys() -> None:
    assert {Sizes(1, 2, 3): "x"}[Sizes(1, 2, 3)] == "x"


def test_every_output_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An e4m3 output that saturates, and what went into the square beside it: each by itself can be wrong."""
    base = catalog.bf16_gemm("nt", catalog.Shape(64, 32, groups=1), DType.E4M3)
    pre = Operand(name="pre", dtype=DType.F16, box=("m", "n"))
    steps = (Keep(to="pre"), Activation(function="squared_relu"), *base.epilogue)
    spec = base.replace(name="squares", operands=(*base.operands, pre), epilogue=steps)
    sizes, cpu = Sizes(9, 32, 400), torch.device("cpu")
    outcome = running.execute(spec, sizes, cpu, "random", seed=1)
    d, kept = outcome.results
    assert not outcome.wrong and (d.dtype, kept.dtype) == (torch.float8_e4m3fn, torch.float16)
    assert (d.float() == inputs.LARGEST[DType.E4M3]).any() and (kept < 0).any()
    for old, new in (("keep(x0", "keep(gemmgen::add(x0, x0)"), ("gemmgen::squared_relu(", "gemmgen::relu(")):
        with planted(monkeypatch, old, new):
            assert running.execute(spec, sizes, cpu, "random", seed=1).wrong


def test_reductions_are_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel that stores the right matrix and the wrong largest magnitudes."""
    base, cpu, sizes = catalog.specs()["sm90_bf16_gemm_nt_bf16_64x32"], torch.device("cpu"), Sizes(70, 40, 72)
    largest = Operand(name="largest", dtype=DType.F32, box=("m",))
    epilogue = (Reduce(function="amax", along="n", to="largest"), *base.epilogue)
    spec = base.replace(name="reducing", operands=(*base.operands, largest), epilogue=epilogue)
    right = running.execute(spec, sizes, cpu, "random", 1)
    with planted(monkeypatch, "gemmgen::Amax", "gemmgen::Sum"):
        wrong = running.execute(spec, sizes, cpu, "random", 1)
    assert not right.wrong and torch.equal(right.results[1].bfloat16(), right.results[0].abs().amax(1))
    assert wrong.wrong and torch.equal(wrong.results[0], right.results[0]) and wrong.errors.worst_tile > 0.1
