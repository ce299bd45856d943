"""``generate``: writes, compares without writing, and names what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmgen.generate import library_files

Command = Callable[..., Any]


def test_check_accepts_the_committed_library(gemmgen: Command) -> None:
    done = gemmgen("generate", "--check")
    assert done.status == 0, done.out
    assert "are up to date" in done.out


def test_generate_then_check_in_another_folder(gemmgen: Command, tmp_path: Path) -> None:
    count = len(library_files())
    assert gemmgen("generate", "--into", tmp_path).out == f"{count} files in {tmp_path}, {count} changed\n"
    assert gemmgen("generate", "--into", tmp_path).out == f"{count} files in {tmp_path}, 0 changed\n"
    assert gemmgen("generate", "--check", "--into", tmp_path).status == 0


def test_check_lists_differences_and_writes_nothing(gemmgen: Command, tmp_path: Path) -> None:
    gemmgen("generate", "--into", tmp_path)
    (tmp_path / "fp8_gemm_nt.py").write_text("edited by hand\n")
    (tmp_path / "bf16_gemm_nn.py").unlink()
    (tmp_path / "stray.cu").write_text("stray")
    done = gemmgen("generate", "--check", "--into", tmp_path)
    assert done.status == 1
    assert done.out.splitlines() == ["missing  bf16_gemm_nn.py", "differs  fp8_gemm_nt.py", "stale    stray.cu"]
    assert done.err == "gemmgen: 3 generated files are not up to date; run `gemmgen generate`\n"
    assert (tmp_path / "fp8_gemm_nt.py").read_text() == "edited by hand\n"
    assert gemmgen("generate", "--into", tmp_path).out.endswith("3 changed\n")
    assert not (tmp_path / "stray.cu").exists()


def test_a_long_list_of_differences_is_cut(gemmgen: Command, tmp_path: Path) -> None:
    done = gemmgen("generate", "--check", "--into", tmp_path)
    assert done.status == 1
    assert len(done.out.splitlines()) == 21
    assert done.out.splitlines()[-1] == f"... and {len(library_files()) - 20} more"
