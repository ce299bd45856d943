"""P24 and P25 at the command line: awkward names, a missing helper program, a missing compiler, said in a sentence."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmgen.backends import emit
from gemmgen.commands import sass
from gemmgen.runtime import cache, nvrtc
from gemmgen.runtime.errors import NvrtcNotFound

NAME = "sm90_bf16_gemm_nt_bf16_64x32"
Command = Callable[..., Any]


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nvidia" else find(name))


@pytest.mark.usefixtures("no_package")
def test_without_nvdisasm_the_message_says_what_to_install(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    done = gemmgen("emit", NAME, "--as", "sass")
    assert (done.status, done.out) == (1, "")
    assert done.err == "gemmgen: nvdisasm is not installed; pip install nvidia-cuda-nvdisasm\n"


@pytest.mark.usefixtures("no_package")
def test_what_a_failing_nvdisasm_says_is_passed_on(
    gemmgen: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\necho 'fatal: unknown chip' >&2\nexit 3\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = gemmgen("emit", NAME, "--as", "sass")
    assert (done.status, done.err) == (1, "gemmgen: nvdisasm failed with status 3: fatal: unknown chip\n")


def test_the_installed_nvdisasm_is_found() -> None:
    assert sass.find_nvdisasm().name.startswith("nvdisasm")


def test_without_nvrtc_text_and_plan_still_work(
    gemmgen: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing() -> None:
        raise NvrtcNotFound("NVRTC is missing. Fix: pip install nvidia-cuda-nvrtc.")

    monkeypatch.setattr(nvrtc, "_load", missing)
    monkeypatch.setattr(cache, "_default", None)
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    nvrtc.nvrtc_identity.cache_clear()
    assert gemmgen("plan", NAME).status == 0
    assert gemmgen("emit", NAME).status == 0
    for words in (("emit", NAME, "--as", "ptx"), ("compile", NAME), ("check", NAME)):
        done = gemmgen(*words)
        assert done.status == 1 and done.err.count("\n") == 1
        assert "pip install nvidia-cuda-nvrtc" in done.err


@pytest.mark.parametrize("folder", ["with space", "quo'te", 'dou"ble', "$HOME", "ünïcödé", "a:b"])
def test_targets_and_outputs_in_awkward_folders(
    gemmgen: Command, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    place = tmp_path / folder
    place.mkdir()
    (place / "my spec.py").write_text(Path(example.removesuffix(":first")).read_text())
    assert gemmgen("emit", f"{place / 'my spec.py'}:first", "-o", place / "out put.cu").status == 0
    monkeypatch.chdir(place)
    assert gemmgen("emit", "my spec.py:first").out == (place / "out put.cu").read_text()


def test_a_target_file_that_raises_says_what(gemmgen: Command, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise RuntimeError('no such table')\n")
    done = gemmgen("emit", f"{path}:spec")
    assert (done.status, done.err) == (1, f"gemmgen: target {path}:spec, line 1: RuntimeError: no such table\n")


def test_a_compile_error_keeps_the_log(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmgen import backends

    monkeypatch.setattr(backends, "emit", lambda spec: emit(spec) + "\nint broken = undeclared_name;\n")
    done = gemmgen("compile", NAME)
    assert done.status == 1
    first, *log = done.err.splitlines()
    assert first.startswith("gemmgen: NVRTC ") and f"could not compile {NAME}.cu" in first
    assert any("undeclared_name" in line and line.startswith("  ") for line in log)


def test_an_internal_error_says_how_to_see_more(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmgen import backends

    def broken(spec: object) -> str:
        raise KeyError("part")

    monkeypatch.setattr(backends, "table", broken)
    done = gemmgen("plan", NAME)
    assert done.status == 1
    assert "internal error, KeyError: 'part' (set GEMMGEN_TRACEBACK=1 to see where)" in done.err
    monkeypatch.setenv("GEMMGEN_TRACEBACK", "1")
    with pytest.raises(KeyError):
        gemmgen("plan", NAME)
