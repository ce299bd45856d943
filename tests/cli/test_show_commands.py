"""``list``, ``emit`` and ``plan``: every kind of TARGET, every form, every edit, and the sentences for wrong ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmgen import catalog
from gemmgen.backends import emit, lower, table
from gemmgen.ir import KernelSpec

NAME = "sm90_fp8_gemm_nt_bf16_128x128"
SPEC = catalog.specs()[NAME]
Command = Callable[..., Any]


def test_list_has_a_line_for_every_kernel(gemmgen: Command) -> None:
    done = gemmgen("list")
    lines = done.out.splitlines()
    assert done.status == 0
    assert lines[0].split() == ["kernel", "op", "arch", "tile", "cluster", "d", "c"]
    assert [line.split()[0] for line in lines[1:]] == list(catalog.all_specs())
    assert "\x1b" not in done.out and "│" not in done.out


def test_list_as_json_says_the_same(gemmgen: Command) -> None:
    rows = json.loads(gemmgen("list", "--json").out)
    assert [row["name"] for row in rows] == list(catalog.all_specs())
    row = next(row for row in rows if row["name"] == "sm90_bf16_gemm_tn_f32_c_128x128")
    assert row == {
        "name": "sm90_bf16_gemm_tn_f32_c_128x128",
        "op": "bf16_gemm_tn",
        "arch": "sm90",
        "tile": [128, 128, 64],
        "cluster": [1, 1],
        "d": "f32",
        "c": True,
    }


def test_emit_prints_the_text_that_compiles(gemmgen: Command) -> None:
    done = gemmgen("emit", NAME)
    assert (done.status, done.out, done.err) == (0, emit(SPEC), "")


@pytest.mark.parametrize(
    ("form", "mark"),
    [("ptx", ".visible .entry " + NAME), ("sass", ".text." + NAME), ("cuda", 'extern "C"'), ("plan", "ring ab")],
)
def test_emit_in_every_form(gemmgen: Command, form: str, mark: str) -> None:
    assert mark in gemmgen("emit", NAME, "--as", form).out


def test_sass_holds_the_instructions_of_the_plan(gemmgen: Command) -> None:
    text = gemmgen("emit", NAME, "--as", "sass").out
    assert re.search(r"QGMMA\.64x128x32\.F32\.E4M3\.E4M3", text)
    assert "UTMALDG.2D" in text and "UTMASTG.2D" in text


def test_emit_as_json_can_be_read_back(gemmgen: Command) -> None:
    assert KernelSpec.from_json(gemmgen("emit", NAME, "--as", "json").out) == SPEC


@pytest.mark.parametrize("name", [NAME, "sm100_k_major_e2m1"])
def test_json_in_a_file_is_a_target(gemmgen: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / "spec.json"
    assert gemmgen("emit", name, "--as", "json", "-o", path).status == 0
    assert gemmgen("plan", path).out == gemmgen("plan", name).out
    assert '"name": "other"' in gemmgen("emit", path, "--set", "name=other", "--as", "json").out


BAD_JSON = {
    "": "is no JSON: Expecting value: line 1 column 1",
    "\xff": "is no JSON: 'utf-8' codec can't decode",
    "[1]": "holds no spec: Input should be an object",
    '{"name": "x", "tile": {"m": 64}}': "holds no spec: arch: Field required; tile.n: Field required; tile.k: ",
    '{"destination": 1}': "destination: Input should be an object, not 1",
    SPEC.to_json().replace('"m": 128', '"m": 64, "m": 128', 1): "has 'm' twice in one object; remove one of them",
    SPEC.to_json().replace('"m": 128', '"m": "wide"', 1): "tile.m: Input should be a valid integer, not 'wide'; `gemm",
}


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_a_file_without_a_spec_s_json_says_so(gemmgen: Command, tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(text.encode("latin1"))
    done = gemmgen("plan", path)
    assert done.status == 1 and done.err.count("\n") == 1
    assert done.err.startswith(f"gemmgen: target {path} ") and BAD_JSON[text] in done.err


def test_emit_to_a_file(gemmgen: Command, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    done = gemmgen("emit", NAME, "-o", path)
    assert (done.out, path.read_text()) == ("", emit(SPEC))
    assert [item.name for item in tmp_path.iterdir()] == ["kernel.cu"]


def test_plan_prints_the_table(gemmgen: Command) -> None:
    assert gemmgen("plan", NAME).out == table(lower(SPEC))


def test_an_op_name_picks_by_size(gemmgen: Command) -> None:
    large = gemmgen("plan", "fp8_gemm_nt", "--arch", "sm90", "-m", 8192, "-n", 8192, "-k", 4096).out
    small = gemmgen("plan", "fp8_gemm_nt", "--arch", "sm90", "-m", 1, "-n", 512, "-k", 4096).out
    assert large.startswith("sm90_fp8_gemm_nt_bf16_") and small.startswith("sm90_fp8_gemm_nt_bf16_16x32_s8")
    assert large != small


def test_a_spec_in_a_file_is_a_target(gemmgen: Command, example: str) -> None:
    text = gemmgen("emit", example).out
    assert "// spec: epilogue[0]: scale by alpha" in text
    assert "// spec: epilogue[1]: bias bias along n" in text
    assert "epilogue   scale -> bias -> cast -> store" in gemmgen("plan", example).out


EDITS = {
    "tile.n=256": lambda spec: spec.tile.n == 256,
    "rings.ab.slots=4": lambda spec: spec.ring("ab").slots == 4,
    "rings.0.slots=3": lambda spec: spec.ring("ab").slots == 3,
    "roles.math.body.unroll=7": lambda spec: spec.math.body.unroll == 7,
    "roles.math.registers=null": lambda spec: spec.math.registers is None,
    "schedule.kind=one_tile": lambda spec: spec.schedule.kind == "one_tile",
    "schedule.raster_group=4": lambda spec: spec.schedule.raster_group == 4,
    "cluster.m=2": lambda spec: spec.cluster.m == 2,
    "programmatic_launch=true": lambda spec: spec.programmatic_launch,
    "name=other": lambda spec: spec.name == "other",
    'epilogue=[{"kind":"cast","to":"bf16"},{"kind":"store","to":"d"}]': lambda spec: spec.epilogue[-1].through is None,
}


@pytest.mark.parametrize("edit", EDITS)
def test_set_edits_a_field_by_its_path(gemmgen: Command, edit: str) -> None:
    done = gemmgen("emit", NAME, "--as", "json", "--set", edit)
    assert done.status == 0, done.err
    spec = KernelSpec.from_json(done.out)
    assert EDITS[edit](spec) and not EDITS[edit](SPEC)


def test_edits_are_applied_together(gemmgen: Command) -> None:
    edits = ("--set", "epilogue.0.to=f32", "--set", "operands.d.dtype=f32")
    spec = KernelSpec.from_json(gemmgen("emit", NAME, "--as", "json", *edits).out)
    assert spec.output.dtype == "f32"
    assert gemmgen("plan", NAME, edits[0], edits[1]).status == 1


FAILURES = {
    (
        "plan",
        "fp8_gem_nt",
    ): "target 'fp8_gem_nt' is no catalog kernel, no op, no FILE.py:VARIABLE and no FILE.json; did you mean fp8",
    ("plan", "zzz"): "`gemmgen list` shows what there is",
    ("plan", "fp8_gemm_nt", "--arch", "sm75"): "--arch 'sm75' has no backend; use sm90",
    ("plan", "nowhere.py:x"): "there is no file nowhere.py",
    ("plan", "nowhere.json"): "there is no file nowhere.json",
    ("plan", NAME, "--set", "tile.q=1"): "--set tile.q: 'tile' has no 'q'; its fields are m, n, k",
    ("plan", NAME, "--set", "rings.xy.slots=1"): "'rings' has no 'xy'; its entries are ab, cd",
    ("plan", NAME, "--set", "tile.m.x=1"): "'tile.m' has no 'x'; it is the value 128 and has no fields",
    ("plan", NAME, "--set", "tile.n"): "--set 'tile.n': write it as path=value, such as tile.n=256",
    ("plan", NAME, "--set", "tile.n=100"): "tile.n: Input should be a multiple of 8, not 100",
    ("plan", NAME, "--set", "tile.n=wide"): "tile.n: Input should be a valid integer, not 'wide'",
    ("plan", NAME, "--set", "tile.m=64"): "2 warpgroups of 64-row instructions need a multiple of 128",
    ("emit", NAME, "--set", "rings.ab.slots=30"): "ring 'ab' with 30 slots needs",
    ("plan", NAME, "--set", "operands.a.major=n"): "major 'n' is not an axis of box ('m', 'k')\n",
    (
        "plan",
        "k_grouped_bf16_gemm_tn_contiguous",
    ): "depends on how its groups share k, which commands are not told; name",
    ("run", NAME, "--seed", "99999999999999999999"): "--seed: is 99999999999999999999; generators take whole numbers",
    ("compile", "--all", "--set", "tile.n=64"): "--set edits targets that are named, not those of --all; leave one",
    ("compile",): "name targets or say --all, one of the two",
}


@pytest.mark.parametrize("words", FAILURES, ids=" ".join)
def test_a_failure_is_one_sentence_and_status_1(gemmgen: Command, words: tuple[str, ...]) -> None:
    done = gemmgen(*words)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("gemmgen: ") and done.err.count("\n") == 1
    assert FAILURES[words] in done.err


def test_a_file_without_that_variable_names_those_it_has(gemmgen: Command, tmp_path: Path, example: str) -> None:
    done = gemmgen("plan", example.replace(":first", ":second"))
    assert "'second' is no KernelSpec; the KernelSpecs there are first" in done.err
    empty = tmp_path / "empty.py"
    empty.write_text("spec = 3\n")
    assert "'spec' is no KernelSpec; the file defines none" in gemmgen("plan", f"{empty}:spec").err


def test_a_file_may_import_its_neighbours(gemmgen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_neighbour.py").write_text("from gemmgen import catalog\n\nspecs = catalog.specs()\n")
    (tmp_path / "mine.py").write_text(f"from a_neighbour import specs\n\nmine = specs[{NAME!r}]\n")
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    assert gemmgen("plan", "mine.py:mine").out == table(lower(SPEC))
    assert sys.path == before
    (tmp_path / "lost.py").write_text("import nobodys_neighbour\n")
    done = gemmgen("plan", "lost.py:mine")
    assert (done.status, done.err.count("\n"), sys.path) == (1, 1, before)
    assert "an import in lost.py failed: No module named 'nobodys_neighbour'; what it imports must lie" in done.err


RAISING = {
    "x = 1\n\ny = x / 0\n": ", line 3: ZeroDivisionError: division by zero\n",
    "def f():\n    return {}[1]\n\nspec = f()\n": ", line 2: KeyError: 1\n",
    "x = (\n": ", line 1: SyntaxError: '(' was never closed\n",
    "from gemmgen import Tile\n\nspec = Tile(\n    m=64, n=7, k=64)\n": ", line 3: n: Input should be a mu",
}


@pytest.mark.parametrize("text", RAISING, ids=range(len(RAISING)))
def test_a_file_that_raises_is_named_with_the_line(
    gemmgen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    done = gemmgen("plan", "mine.py:spec")
    assert done.status == 1 and done.err.count("\n") == 1
    assert done.err.startswith(f"gemmgen: target mine.py:spec{RAISING[text]}")


def test_a_wrong_word_is_a_usage_error(gemmgen: Command) -> None:
    assert gemmgen("emit", NAME, "--as", "fortran").status == 2
    assert gemmgen("frobnicate").status == 2


WITHOUT_CUDA = """
import sys
for name in ("torch", "numpy", "cuda", "black"):
    sys.modules[name] = None
sys.argv = ["gemmgen", *sys.argv[1:]]
from gemmgen.cli import main
main()
"""


@pytest.mark.parametrize("words", [("--help",), ("emit", "--help"), ("list",)])
def test_help_and_list_load_neither_torch_nor_cuda(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WITHOUT_CUDA, *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TERM": "dumb"})
    assert done.returncode == 0, done.stderr
    assert "gemmgen" in done.stdout or NAME in done.stdout


def test_emit_loads_no_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_CUDA, "emit", NAME]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, emit(SPEC)), done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m gemmgen.cli list | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("kernel") and done.stderr == ""
