"""The rooms of the package import only downwards: the contract in pyproject.toml holds and covers every room."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import gemmgen

TOP = Path(__file__).parents[1]
PACKAGE = Path(gemmgen.__file__).parent
CONTRACTS = {
    c["type"]: c for c in tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
LAYERS = [layer.removeprefix("gemmgen.") for layer in CONTRACTS["layers"]["layers"]]
LIBRARIES = {
    "ir": {"pydantic"},
    "catalog": set(),
    "backends": {"jinja2"},
    "sim": {"numpy"},
    "cli": {"typer"},
}
"""Third-party packages that a room may import; rooms that are not named may import any."""


def rooms() -> dict[str, list[Path]]:
    found = {path.name: sorted(path.rglob("*.py")) for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    return {**found, "cli": [PACKAGE / "cli.py"]}


def imports(path: Path) -> set[str]:
    """Modules a file imports at any depth of its code, type-checking blocks included, relative ones resolved."""
    package = ["gemmgen", *path.relative_to(PACKAGE).parent.parts]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "gemmgen" else {module}
    return found


def test_every_room_has_a_place_in_the_contract() -> None:
    assert set(rooms()) == {*LAYERS, "sim"}


def test_rooms_import_downwards_only() -> None:
    for room, paths in rooms().items():
        if room == "sim":
            continue
        above = LAYERS[: LAYERS.index(room)]
        for path in paths:
            wrong = [m for m in imports(path) if m.startswith("gemmgen.") and m.split(".")[1] in above]
            assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}, which lie above {room}"


def test_the_simulator_imports_nothing_of_ours() -> None:
    assert set(CONTRACTS["forbidden"]["forbidden_modules"]) == {f"gemmgen.{layer}" for layer in LAYERS}
    for path in rooms()["sim"]:
        wrong = [m for m in imports(path) if m.startswith("gemmgen") and not m.startswith("gemmgen.sim")]
        assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}"


def test_rooms_load_only_the_libraries_they_may_know() -> None:
    import sys

    for room, allowed in LIBRARIES.items():
        for path in rooms()[room]:
            tops = {module.split(".")[0] for module in imports(path)} - set(sys.stdlib_module_names) - {"gemmgen"}
            assert tops <= allowed, f"{path.relative_to(PACKAGE)} imports {tops - allowed}"


MOST_LINES = 400
"""Of a file that is written by hand, as CONTRIBUTING.md says."""


def test_files_are_short() -> None:
    written = [
        path
        for room in ("gemmgen", "tests", "benchmarks", "examples")
        for kind in ("py", "cuh", "jinja")
        for path in (TOP / room).rglob(f"*.{kind}")
    ]
    assert len(written) > 500
    long = {str(path.relative_to(TOP)): len(path.read_text().splitlines()) for path in written}
    assert not [f"{path}: {lines}" for path, lines in long.items() if lines > MOST_LINES]
