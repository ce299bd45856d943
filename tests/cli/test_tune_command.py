"""``tune``: refusals without a GPU, what is stored, resumed and reported; times are handed in, results simulated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmgen as package
from gemmgen import catalog
from gemmgen.commands import measuring, tuning
from gemmgen.commands.inputs import random_operands
from gemmgen.commands.measuring import Measurement, error_of
from gemmgen.commands.place import Place
from gemmgen.commands.reference import reference, tolerance
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Arch, DType, KernelSpec
from gemmgen.ops.family import Selection
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.selection import Choices, select
from gemmgen.ops.tuned.file import read
from gemmgen.runtime import timing
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.parallel import compile_texts

Command = Callable[..., Any]
CARD = "some GPU"
FAST = "sm90_fp8_gemm_nt_bf16_128x144"
AHEAD = "sm90_fp8_gemm_nt_bf16_64x64_s1"
"""The fastest that reads weights ahead and leaves room for the next launch's CTAs."""
TIMES = {FAST: 8.0, "sm90_fp8_gemm_nt_bf16_64x96_s1_x3": 8.2, AHEAD: 8.4, "sm90_fp8_gemm_nt_bf16_64x32_s1_x2": 8.5}


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.txt"
    path.write_text("# decode\n64 2112 7168\n\n128, 576, 7168  # commas do, too\n")
    return path


def refused(done: Any, message: str) -> None:
    assert done.status == 1 and message in done.err, done.err


def test_without_a_gpu_it_says_so(gemmgen: Command, shapes: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", tmp_path / "t.json")
    refused(done, "tune measures on a GPU that there are kernels for, and torch finds none")
    assert done.err.count("\n") == 1 and not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("64 2112 7168\n64 2112\n", "line 2: '64 2112' is not m n k, three positive numbers"),
        ("# m n k\n\n64 x 7168\n", "line 3: '64 x 7168' is not m n k, three positive numbers"),
        ("64 -8 7168", "line 1: '64 -8 7168' is not m n k"),
        ("0 8 8", "line 1: '0 8 8' is not m n k"),
        ("# nothing\n", "has no problems; write m n k on each line"),
    ],
)
def test_malformed_shapes_are_refused_with_their_line(
    gemmgen: Command, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text(text)
    refused(gemmgen("tune", "fp8_gemm_nt", "--shapes", path), message)


def test_wrong_words_get_a_sentence(gemmgen: Command, shapes: Path, tmp_path: Path) -> None:
    refused(gemmgen("tune", "fp8_gemm", "--shapes", shapes), "operator: 'fp8_gemm' has no tiles to tune; use one of")
    refused(gemmgen("tune", "fp8_gemm_nt_relu_bias", "--shapes", shapes), "followed by _bias, _ACTIVATION or _bias_ACT")
    refused(gemmgen("tune", "tf32_hc_prenorm_gemm", "--shapes", shapes), "has no tiles to tune")
    refused(gemmgen("tune", "fp8_gemm_nt", "--shapes", tmp_path / "none"), "there is no such file; write m n k")
    (tmp_path / "t.json").write_text("[]")
    refused(gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", tmp_path / "t.json"), "tuned file")


# ------------------------------------------------------------------------------------------------ with times handed in


def _by_rule(sizes: Sizes) -> Selection:
    return Selection.of(select("fp8_gemm_nt", sizes.m, sizes.n, sizes.k, 132, Choices()).candidates)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sizes]:
    """A GPU on which FAST is the fastest kernel and the last one is wrong; the problems that were measured."""
    seen: list[Sizes] = []

    def measure(
        specs: Sequence[KernelSpec], sizes: Sizes, seed: int, flush: object, compared: int
    ) -> list[Measurement]:
        seen.append(sizes)
        assert flush in ("write", "read")
        assert compared == _by_rule(sizes).index
        assert len(specs) == len(catalog.FP8_SHAPES)
        wrong = catalog.fp8_gemm_nt(catalog.FP8_SHAPES[-1])
        return [
            Measurement(spec, *((float("inf"), 0.5) if spec == wrong else (TIMES.get(spec.name, 10.0), 1e-3)), 6e-3)
            for spec in specs
        ]

    monkeypatch.setattr(tuning, "gpu_here", lambda: Place(Arch.SM90, 132, CARD))
    monkeypatch.setattr(tuning, "_compile", lambda selections: None)
    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(timing, "Flush", lambda kind: kind)
    return seen


def test_the_fastest_is_stored_and_a_wrong_kernel_reported(
    gemmgen: Command, shapes: Path, tmp_path: Path, asked: list[Sizes]
) -> None:
    output, times = tmp_path / "t.json", tmp_path / "times.jsonl"
    done = gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", output, "--times", times)
    refused(done, "2 results were wrong, and are not stored")
    wrong = catalog.fp8_gemm_nt(catalog.FP8_SHAPES[-1]).name
    assert f"{wrong} at m=64 n=2112 k=7168: worst tile error 5.00e-01" in done.err
    (card,) = read(output).cards
    assert (card.card, card.sms, card.arch) == (CARD, 132, "sm90") and set(card.environment) >= {"torch", "date"}
    assert [(each.m, each.n, each.kernel, each.us, each.rule_us, each.ahead) for each in card.entries] == [
        (128, 576, FAST, 8.0, 10.0, AHEAD),
        (64, 2112, FAST, 8.0, 10.0, AHEAD),
    ]
    assert "the rule's kernel takes 1.250 of the fastest one's time (geometric mean), 1.25 at worst" in done.out
    rows = [json.loads(line) for line in times.read_text().splitlines()]
    assert [(row["card"], row["m"]) for row in rows] == [(CARD, 64), (CARD, 128)] and FAST in rows[0]["us"]
    assert wrong not in rows[0]["us"]


def test_entries_name_the_product_s_kernel_which_a_bias_of_any_type_is_behind(
    gemmgen: Command, shapes: Path, tmp_path: Path, asked: list[Sizes], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = "_bf16_bias_f32_relu_"
    times = {name.replace("_bf16_", behind): us for name, us in TIMES.items()}

    def measure(specs: Sequence[KernelSpec], *problem: object, **more: object) -> list[Measurement]:
        assert all(behind in spec.name for spec in specs)
        return [Measurement(spec, times.get(spec.name, 10.0), 1e-3, 6e-3) for spec in specs]

    monkeypatch.setattr(measuring, "measure", measure)
    output, name = tmp_path / "t.json", "fp8_gemm_nt_bias_relu"
    assert gemmgen("tune", name, "--shapes", shapes, "-o", output).status == 0
    (card,) = read(output).cards
    assert {(each.op, each.kernel, each.us, each.ahead) for each in card.entries} == {(name, FAST, 8.0, AHEAD)}
    assert all(each.rule in catalog.specs() for each in card.entries)
    package.use_tuned(output, shipped=False)
    for bias in (DType.F32, DType.BF16):
        epilogue = catalog.finished_output(DType.BF16, False, bias, "relu")
        found = select("fp8_gemm_nt", 64, 2112, 7168, 132, Choices(card=CARD, epilogue=epilogue))
        assert found.picked.product == FAST and found.picked.spec.name == FAST.replace("_bf16_", f"_{epilogue.name}_")
    package.use_tuned()


@pytest.mark.parametrize("flush", ["write", "read"])
def test_a_file_says_how_l2_was_flushed(
    gemmgen: Command, shapes: Path, tmp_path: Path, asked: list[Sizes], flush: str
) -> None:
    output = tmp_path / "t.json"
    gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", output, "--flush", flush)
    assert read(output).cards[0].environment["flush"] == flush
    refused(
        gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "--flush", "both"), "--flush: 'both' is no way to flush L2"
    )


@pytest.mark.parametrize(("us", "ahead"), [(8.47, True), (8.49, False), (7.9, False)])
def test_what_reads_ahead_is_named_where_it_takes_6_percent_longer_at_most(
    gemmgen: Command,
    shapes: Path,
    tmp_path: Path,
    asked: list[Sizes],
    monkeypatch: pytest.MonkeyPatch,
    us: float,
    ahead: bool,
) -> None:
    """Nor where it is the fastest anyway; and a file says nothing of what it does not name."""
    monkeypatch.setattr(sys.modules[__name__], "TIMES", {FAST: 8.0, AHEAD: us})
    output = tmp_path / "t.json"
    gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", output)
    assert {each.ahead for each in read(output).cards[0].entries} == {AHEAD if ahead else None}
    assert ('"ahead"' in output.read_text()) == ahead


@pytest.mark.parametrize(("us", "kept"), [(8.08, True), (8.09, False)])
def test_the_rule_s_kernel_stays_where_it_takes_1_percent_longer_at_most(
    gemmgen: Command,
    shapes: Path,
    tmp_path: Path,
    asked: list[Sizes],
    monkeypatch: pytest.MonkeyPatch,
    us: float,
    kept: bool,
) -> None:
    by_rule = _by_rule(Sizes(64, 2112, 7168)).picked.spec.name
    monkeypatch.setattr(sys.modules[__name__], "TIMES", {FAST: 8.0, by_rule: us})
    output = tmp_path / "t.json"
    gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", output)
    (entry,) = (each for each in read(output).cards[0].entries if each.m == 64)
    assert (entry.kernel, entry.us, entry.rule, entry.rule_us) == (
        (by_rule, us, by_rule, us) if kept else (FAST, 8.0, by_rule, us)
    )


def test_what_is_stored_is_not_measured_again(
    gemmgen: Command, shapes: Path, tmp_path: Path, asked: list[Sizes]
) -> None:
    words = ("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", tmp_path / "t.json")
    gemmgen(*words)
    shapes.write_text(shapes.read_text() + "256 576 7168\n")
    done = gemmgen(*words)
    assert [each.m for each in asked] == [64, 128, 256]
    assert "2 problems are in" in done.out and "--again measures them anew" in done.out
    gemmgen(*words, "--again")
    assert len(asked) == 6 and len(read(tmp_path / "t.json").cards[0].entries) == 3


def test_a_run_that_is_cut_off_keeps_what_it_had(
    gemmgen: Command, shapes: Path, tmp_path: Path, asked: list[Sizes], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measuring.measure

    def cut_off(specs: Sequence[KernelSpec], sizes: Sizes, seed: int, flush: Any, **more: Any) -> list[Measurement]:
        if sizes.m == 128:
            raise RuntimeError("the GPU is gone")
        return whole(specs, sizes, seed, flush, **more)

    monkeypatch.setattr(measuring, "measure", cut_off)
    refused(gemmgen("tune", "fp8_gemm_nt", "--shapes", shapes, "-o", tmp_path / "t.json"), "the GPU is gone")
    assert [each.m for each in read(tmp_path / "t.json").cards[0].entries] == [64]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_extents_that_an_operator_cannot_take_are_refused_with_their_line(
    gemmgen: Command, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "gpu_here", lambda: Place(Arch.SM100, 148, CARD))
    shapes.write_text("64 64 128\n64 64 71\n")
    refused(
        gemmgen("tune", "mxfp4_gemm_nt", "--shapes", shapes), "line 2: k=71 is no multiple of 2, as mxfp4_gemm_nt needs"
    )
    monkeypatch.setattr(tuning, "gpu_here", lambda: Place(Arch.SM90, 132, CARD))
    refused(gemmgen("tune", "mxfp4_gemm_nt", "--shapes", shapes), "there is no kernel for sm90")


# ------------------------------------------------------------------------------------------------ measuring


def test_a_wrong_result_has_a_large_error_and_a_right_one_has_not() -> None:
    spec = catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1))
    operands = random_operands(spec, {"m": 20, "n": 24, "k": 72}, 0)
    expected = {"d": reference(spec, operands)}
    with package.simulate("sm90"):
        assert error_of(spec, operands, expected) <= tolerance(spec)
        assert error_of(spec, operands, {"d": expected["d"].flip(0)}) > 0.1
        assert not Measurement(spec, 1.0, float("nan"), tolerance(spec)).right


@pytest.mark.parametrize(
    ("compared", "looks", "indices", "expected"),
    [
        (
            None,
            [[100.0, 90.0, 131.0, 95.0], [100.0, 98.0, 102.0], [49.0, 50.0]],
            [[0, 1, 3], [0, 1]],
            {0: 98.0, 1: 100.0, 2: 131.0, 3: 102.0},
        ),
        (
            2,
            [[100.0, 90.0, 131.0, 95.0], [100.0, 98.0, 130.0, 102.0], [50.0, 49.0, 65.0]],
            [[0, 1, 2, 3], [0, 1, 2]],
            {0: 100.0, 1: 98.0, 2: 130.0, 3: 102.0},
        ),
        (4, [[100.0, 90.0, 131.0, 95.0], [100.0, 98.0, 102.0], [49.0, 50.0]], [[0, 1, 3], [0, 1]], {0: 98.0, 1: 100.0}),
    ],
    ids=["none", "far", "wrong"],
)
def test_the_last_look_orders_the_few_that_are_closest_and_keeps_their_level(
    monkeypatch: pytest.MonkeyPatch,
    compared: int | None,
    looks: list[list[float]],
    indices: list[list[int]],
    expected: dict[int, float],
) -> None:
    """The one that others are compared with is among them, however slow it is, unless it was wrong."""
    seen: list[tuple[list[int], int]] = []
    calls: dict[int, Callable[[], object]] = {index: partial(int, index) for index in range(4)}

    def times(some: Sequence[Callable[[], object]], flush: object, repeats: int) -> list[float]:
        assert flush == "write"
        seen.append(([int(str(call())) for call in some], repeats))
        return looks[len(seen) - 1]

    monkeypatch.setattr(measuring, "times", times)
    found = measuring._timed(calls, "write", compared)  # type: ignore[arg-type]
    assert [each for each, _ in seen] == [[0, 1, 2, 3], *indices]
    assert {index: found[index] for index in expected} == pytest.approx(expected)
    assert seen[0][1] == measuring.FIRST_LOOK and all(count == measuring.MOST for _, count in seen[1:])


def test_many_texts_are_compiled_side_by_side_into_the_cache() -> None:
    texts = [kernel_of(catalog.bf16_gemm("nt", shape)).text for shape in catalog.BF16_SHAPES[:2]]
    done = list(compile_texts(texts, resolve("sm90"), workers=2))
    assert sorted(text.entry for text in done) == sorted(text.entry for text in texts)
    for text in texts:
        assert text.entry in cached_cubin(text.source, resolve("sm90"), text.file_name).resources


def test_ways_to_flush_are_two() -> None:
    with pytest.raises(ValueError, match="kind: 'both' is no way to flush L2; use write or read"):
        timing.Flush("both")
