"""``sim``: anybody's PTX, listed or run with buffers from files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PTX = Path(__file__).parent / "add.ptx"
Command = Callable[..., Any]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.float32))
    return tmp_path / "x.npy"


def run_add(gemmgen: Command, *more: object, count: int = 100, grid: str = "2") -> Any:
    words = ("--entry", "add", "--grid", grid, "--block", "64", *more)
    return gemmgen("sim", PTX, *words, "--param", "f32:0.5", "--param", f"u32:{count}")


def test_without_an_entry_the_kernels_are_listed(gemmgen: Command) -> None:
    lines = [line.split() for line in gemmgen("sim", PTX).out.splitlines()]
    assert lines[0][0] == "entry"
    assert lines[1][0] == "add" and "".join(lines[1][2:5]) == "8,4,4"


def test_the_ptx_we_emit_can_be_listed(gemmgen: Command, tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    name = "sm90_fp8_gemm_nt_bf16_64x32"
    gemmgen("emit", name, "--as", "ptx", "-o", path)
    assert gemmgen("sim", path).out.splitlines()[1].split()[0] == name


def test_a_file_without_a_kernel_is_refused(gemmgen: Command, tmp_path: Path) -> None:
    for text in ('{"m": 1}', ""):
        path = tmp_path / "spec.json"
        path.write_text(text)
        done = gemmgen("sim", path)
        assert (done.status, done.out) == (1, "") and f"{path}: has no .entry, so there is nothing to run" in done.err


def test_run_changes_the_buffer_and_saves_it(gemmgen: Command, numbers: Path, tmp_path: Path) -> None:
    done = run_add(gemmgen, "--param", numbers, "--save", f"0={tmp_path / 'y.npy'}")
    assert done.status == 0, done.err
    assert "warp instructions in" in done.out
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.arange(100, dtype=np.float32) + 0.5)
    np.testing.assert_array_equal(np.load(numbers), np.arange(100, dtype=np.float32))


def test_a_buffer_of_zeros(gemmgen: Command, tmp_path: Path) -> None:
    run_add(gemmgen, "--param", "zeros:400", "--save", f"0={tmp_path / 'y.npy'}", "--schedule", "random", "--seed", 7)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy").view(np.float32), np.full(100, 0.5, np.float32))


def test_a_write_past_the_buffer_is_one_sentence(gemmgen: Command, numbers: Path) -> None:
    done = run_add(gemmgen, "--param", numbers, count=101)
    assert done.status == 1
    assert done.err.startswith("gemmgen: ") and "param0" in done.err and "add.ptx" not in done.err
    assert "Traceback" not in done.err


WRONG = {
    ("--param", "q32:7"): "--param 0 'q32:7': write FILE.npy, zeros:BYTES, or u32:7",
    ("--param", "u32:-1"): "--param 0: '-1' is no u32",
    ("--param", "u8:300"): "--param 0: '300' is no u8",
    ("--param", "f32:many"): "--param 0: 'many' is no f32",
    ("--param", "nowhere.npy"): "nowhere.npy",
    ("--param", "zeros:8", "--save", "3=y.npy"): "--save '3=y.npy': write INDEX=FILE.npy",
    ("--block", "wide"): "--block 'wide': write one to three whole numbers",
    ("--grid", "1,1,1,1"): "--grid '1,1,1,1': write one to three whole numbers",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_word_is_one_sentence(gemmgen: Command, words: tuple[str, ...]) -> None:
    done = gemmgen("sim", PTX, "--entry", "add", *words)
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert WRONG[words] in done.err


def test_an_entry_that_is_not_there_names_those_that_are(gemmgen: Command) -> None:
    done = gemmgen("sim", PTX, "--entry", "mul")
    assert done.status == 1 and "the module has no entry 'mul'; it has add" in done.err
