"""``compile``: a row a kernel with what it costs on the chip."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.backends.limits import LIMITS
from gemmgen.commands.compile_table import parse
from gemmgen.commands.compiling import chips, cost
from gemmgen.commands.targets import architecture

NAME = "sm90_bf16_gemm_nt_bf16_64x32"
SM100 = "sm100_bf16_gemm_nt_bf16_128x64"
TOP = Path(__file__).parents[2]
TABLE_FILE = TOP / "docs" / "compile_table.md"
TABLE = parse(TABLE_FILE.read_text())
Command = Callable[..., Any]


def test_compile_shows_registers_spills_and_shared_memory(gemmgen: Command, example: str) -> None:
    done = gemmgen("compile", NAME, example)
    lines = [line.split() for line in done.out.splitlines()]
    assert done.status == 0, done.err
    assert done.out.startswith("kernel")
    assert [line[0] for line in lines[1:]] == [NAME, "first"]
    plan = lower(catalog.specs()[NAME])
    chip, seconds, registers, spills, shared, cubin = lines[1][1:]
    assert chip == "sm_90a"
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
    monkeypatch.setattr(catalog, "all_specs", lambda: few)
    done = gemmgen("compile", "--all", "--arch", "sm90")
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == list(few)


def test_set_edits_what_is_compiled(gemmgen: Command) -> None:
    words = ("--set", "name=fewer", "--set", "rings.ab.slots=2")
    row = gemmgen("compile", "sm90_fp8_gemm_nt_bf16_64x32", *words).out.splitlines()[1].split()
    shipped = catalog.specs()["sm90_fp8_gemm_nt_bf16_64x32"]
    assert row[0] == "fewer" and 0 < int(row[5]) < lower(shipped).shared_bytes


def test_a_chip_can_be_named(gemmgen: Command) -> None:
    done = gemmgen("compile", SM100, "--arch", "sm_103a")
    row = done.out.splitlines()[1].split()
    assert done.status == 0, done.err
    assert row[:2] == [SM100, "sm_103a"] and row[4] == "0"
    done = gemmgen("compile", SM100, "--arch", "sm90")
    assert done.status == 1 and "no target is a kernel for sm90" in done.err


def test_the_table_has_every_chip_and_can_be_read_back(gemmgen: Command, tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    done = gemmgen("compile", NAME, SM100, "--table", path)
    assert done.status == 0, done.err
    printed = [line.split() for line in done.out.splitlines()[1:]]
    assert parse(path.read_text()) == {(row[0], row[1]): tuple(map(int, row[3:])) for row in printed}
    assert [row[1] for row in printed] == ["sm_90a", "sm_100a", "sm_103a"]
    assert "| sm_90a | 1 |" in path.read_text()


def test_the_committed_table_is_of_the_pinned_compiler_and_of_every_kernel() -> None:
    wanted = {(spec.name, each.code) for spec in catalog.all_specs().values() for each in chips(spec)}
    assert set(TABLE) == wanted
    pinned = re.findall(r"^nvidia-cuda-nvrtc==(.*)$", (TOP / "constraints.txt").read_text(), re.MULTILINE)
    assert f"compiled with NVRTC {pinned[0]}:" in TABLE_FILE.read_text()


def test_no_kernel_of_the_committed_table_spills_or_exceeds_the_chip() -> None:
    for (kernel, _), (registers, spilled, shared, cubin) in TABLE.items():
        limits = LIMITS[catalog.all_specs()[kernel].arch]
        assert registers <= limits.registers_per_thread and spilled == 0, kernel
        assert (
            shared == lower(catalog.all_specs()[kernel]).shared_bytes <= limits.shared_per_cta and cubin > 1000
        ), kernel


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.75, 0.99])
def test_rows_of_the_committed_table_are_still_true(place: float) -> None:
    """Whatever changes kernels makes the table stale; five rows of it are compiled again."""
    (kernel, chip), costs = list(TABLE.items())[int(place * len(TABLE))]
    row, _ = cost(catalog.all_specs()[kernel], architecture(chip))
    assert tuple(row[3:]) == costs, "run `gemmgen compile --all --table docs/compile_table.md`"


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
    assert done.status == 1 and "roles need 66560 registers of 64512, as a launch gives 168" in done.err
