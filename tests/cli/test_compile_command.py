"""``compile``: a row a kernel with what it costs on the chip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import lower

NAME = "sm90_bf16_gemm_nt_bf16_64x32"
Command = Callable[..., Any]


def test_compile_shows_registers_spills_and_shared_memory(gemmgen: Command, example: str) -> None:
    done = gemmgen("compile", NAME, example)
    lines = [line.split() for line in done.out.splitlines()]
    assert done.status == 0, done.err
    assert done.out.startswith("kernel")
    assert [line[0] for line in lines[1:]] == [NAME, "first"]
    plan = lower(catalog.specs()[NAME])
    seconds, registers, spills, shared, cubin = lines[1][1:]
    assert float(seconds) > 0 and 0 < int(registers) <= 255 and int(spills) == 0
    assert int(shared) == plan.shared_bytes and int(cubin) > 1000


def test_all_and_targets_exclude_each_other(gemmgen: Command) -> None:
    done = gemmgen("compile", "--all", NAME)
    assert done.status == 1 and "name targets or say --all, one of the two" in done.err


def test_an_architecture_without_backend_is_refused(gemmgen: Command) -> None:
    done = gemmgen("compile", "--all", "--arch", "sm75")
    assert done.status == 1 and "--arch 'sm75' has no backend" in done.err


def test_all_compiles_the_catalog(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: catalog.specs()[name] for name in (NAME, "sm90_fp8_gemm_nt_bf16_64x32")}
    monkeypatch.setattr(catalog, "specs", lambda: few)
    done = gemmgen("compile", "--all", "--arch", "sm90")
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == list(few)


def test_an_op_name_means_all_its_kernels(gemmgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: catalog.specs()[name] for name in (NAME, "sm90_fp8_gemm_nt_bf16_64x32")}
    monkeypatch.setattr(catalog, "specs", lambda: few)
    done = gemmgen("compile", "bf16_gemm_nt")
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == [NAME]


def test_a_broken_spec_says_why_on_one_line(gemmgen: Command, tmp_path: Path, example: str) -> None:
    text = Path(example.removesuffix(":first")).read_text().replace("registers=232", "registers=240")
    path = tmp_path / "broken.py"
    path.write_text(text)
    done = gemmgen("compile", f"{path}:first")
    assert done.status == 1 and "roles need 66560 registers, sm90 has 65536; lower a role's" in done.err
