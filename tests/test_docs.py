"""The documents keep their word: their code runs, and the files and commands they name exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from gemmgen import catalog
from gemmgen.backends import emit
from gemmgen.cli import app
from gemmgen.commands.targets import Sizes, resolve
from gemmgen.generate.operators import OPERATORS, kernels_of
from gemmgen.ir import Arch, KernelSpec
from gemmgen.ops.tuned import read

TOP = Path(__file__).parents[1]
DOCUMENTS = sorted([*TOP.glob("*.md"), *(TOP / "docs").glob("*.md")])
NAMES = [str(path.relative_to(TOP)) for path in DOCUMENTS]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_first_spec_of_the_readme_is_the_example() -> None:
    example = (TOP / "examples" / "first_spec.py").read_text()
    assert blocks(TOP / "README.md", "python")[0] == example
    assert len(example.splitlines()) <= 25


def test_the_fused_kernel_of_its_page_is_the_example() -> None:
    example = (TOP / "examples" / "fused_up.py").read_text()
    page = TOP / "docs" / "fused_kernel.md"
    assert blocks(page, "python")[0] == example
    (shown,) = re.findall(r"^```\n(    // spec:.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    spec = resolve(f"{TOP / 'examples' / 'fused_up.py'}:fused_up", None, Sizes(1, 1, 1))
    assert isinstance(spec, KernelSpec) and shown in emit(spec)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        (name, index)
        for name, path in zip(NAMES, DOCUMENTS, strict=True)
        for index in range(len(blocks(path, "python")))
    ],
)
def test_python_in_a_document_runs(name: str, index: int) -> None:
    code = blocks(TOP / name, "python")[index]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TOP, TOP / "generated")))}
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_files_that_a_document_names_exist(name: str) -> None:
    text = (TOP / name).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    ticked = re.findall(r"`((?:gemmgen|tests|docs|examples|benchmarks|generated)/[\w./]*)`", text)
    for path in [*((TOP / name).parent / link for link in links), *(TOP / path for path in ticked)]:
        assert path.exists(), f"{name} names {path.relative_to(TOP)}"


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_a_document_names_exist(name: str) -> None:
    text = (TOP / name).read_text()
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    for word in re.findall(r"(?:^|`)gemmgen (\w+)", text, re.MULTILINE):
        assert word in commands, f"{name} names `gemmgen {word}`"
    targets = set(re.findall(r"^(\w+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for word in re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE):
        assert word in targets, f"{name} names `make {word}`"


@pytest.mark.parametrize("name", NAMES)
def test_what_a_document_says_is_in_a_file_is_there(name: str) -> None:
    """`NAME` of `FILE`, that is."""
    text = " ".join((TOP / name).read_text().split())
    for word, file in re.findall(r"`(\w+)` of `([\w./]+\.\w+)`", text):
        assert re.search(rf"\b{word}\b", (TOP / file).read_text()), f"{name}: {file} has no {word}"


def test_the_continuous_integration_runs_the_readme_s_test_command() -> None:
    script = TOP / ".ci" / "run"
    lines = [line for line in script.read_text().splitlines() if not line.startswith(("#", "set", "cd"))]
    assert lines == ["make test"]
    assert "make test" in (TOP / "README.md").read_text()
    assert os.access(script, os.X_OK)


def test_what_the_readme_says_of_the_h100_is_what_was_measured() -> None:
    result = json.loads((TOP / "benchmarks" / "results" / "accuracy_h100.json").read_text())
    rows, text = result["rows"], " ".join((TOP / "README.md").read_text().split())
    assert result["environment"]["card"] in text
    assert f"{len(rows)} problems" in text and len({(row["n"], row["k"]) for row in rows}) == 9
    assert (min(row["m"] for row in rows), max(row["m"] for row in rows)) == (1, 4096)
    assert {(row["kind"], row["c"]) for row in rows} == {(kind, c) for kind in ("fp8", "bf16") for c in (False, True)}
    assert max(row["worst_tile"] for row in rows) < 3e-3
    assert all(row["sentinels_intact"] for row in rows)


def test_the_readme_counts_kernels_that_agreed_on_the_gpu() -> None:
    result = json.loads((TOP / "benchmarks" / "results" / "agreement_h200.json").read_text())
    plain = {name: spec for name, spec in catalog.specs().items() if name not in catalog.fused_specs()}
    shipped = {name for name, spec in plain.items() if spec.arch == "sm90" and not spec.prologue}
    agreed = {row["kernel"] for row in result["rows"]}
    assert agreed <= shipped and len(agreed) == result["kernels"]
    assert result["disagree"] == 0 and not any(row["unequal"] or row["wrong"] for row in result["rows"])
    whole = len(agreed) == len(shipped)
    counted = f"all {len(shipped)}" if whole else f"{len(agreed)} of {len(shipped)}"
    assert f"{counted} shipped sm90 kernels" in (TOP / "README.md").read_text()


def test_what_is_said_of_the_h100_s_tuned_file_is_so() -> None:
    h100, h200 = (read(TOP / "gemmgen" / "ops" / "tuned" / f"{card}.json").cards[0] for card in ("h100", "h200"))
    text = " ".join((TOP / "docs" / "tuning.md").read_text().split())
    large = sum(each.op.startswith("fp8") and each.m >= 1024 for each in h100.entries)
    said = f"than the H200's: {len(h100.entries)}, measured with kernels of {h100.environment['date']}."
    assert len(h100.entries) < len(h200.entries) and said in text
    assert f"entries that name one are gone: {large} are left with m of 1024 and more" in text


def test_the_readme_has_every_op_and_says_where_it_runs() -> None:
    table = re.findall(
        r"^\| `(\w+?)(?:\{([\w,]+)\})?` \|(.*?)\|(.*?)\|(.*?)\|", (TOP / "README.md").read_text(), re.MULTILINE
    )
    columns = ("sm90", "sm100", "sm120")
    rows = {
        stem + tail: {arch for arch, cell in zip(columns, cells, strict=True) if cell.strip() == "yes"}
        for stem, tails, *cells in table
        for tail in (tails.split(",") if tails else [""])
    }
    kernels = {op: {str(arch) for arch in Arch if kernels_of(op, arch)} for op in OPERATORS}
    assert set(rows) == set(kernels)
    assert all(kernels[op] <= archs for op, archs in rows.items())
