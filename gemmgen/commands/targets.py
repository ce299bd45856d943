"""TARGET on the command line: a catalog name, an op name, FILE.py:VARIABLE or FILE.json becomes a spec.

Knows the catalog and, for op names, the rule by which ops choose; it compiles and launches nothing.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gemmgen import catalog
from gemmgen.commands.edit import edit
from gemmgen.commands.failure import sentence
from gemmgen.generate.operators import OPERATORS, kernels_of
from gemmgen.ir import AnySpec, Arch, KernelSpec, LayoutSpec
from gemmgen.runtime.architectures import SMS, Architecture
from gemmgen.runtime.architectures import resolve as resolve_architecture
from gemmgen.runtime.errors import UnsupportedArchitecture


@dataclass(frozen=True)
class Sizes:
    """The problem that picks a kernel when TARGET is an op name."""

    m: int = 4096
    n: int = 4096
    k: int = 7168


def resolve(target: str, arch: str | None, sizes: Sizes, assignments: Iterable[str] = ()) -> AnySpec:
    """The spec that a target means, with ``--set`` edits applied; ``arch`` chooses among the kernels of an op."""
    spec = edit(_find(target, architecture(arch) if arch else None, sizes), assignments)
    if arch:
        _check_family(spec, architecture(arch))
    return spec


def chip(spec: AnySpec, arch: str | None) -> Architecture:
    """The exact chip to compile for: the one that was named, else the first of the spec's architecture."""
    return architecture(arch) if arch else resolve_architecture(spec.arch)


def _find(target: str, wanted: Architecture | None, sizes: Sizes) -> AnySpec:
    if ".py:" in target:
        return _load_variable(*target.rsplit(":", 1))
    if target.endswith(".json"):
        return _load_json(target)
    if target in catalog.all_specs():
        return catalog.all_specs()[target]
    if target in OPERATORS:
        return _choose(target, Arch(wanted.family) if wanted else _first_arch(target), sizes)
    known = [*OPERATORS, *catalog.all_specs()]
    close = difflib.get_close_matches(target, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "`gemmgen list` shows what there is"
    raise ValueError(f"target {target!r} is no catalog kernel, no op, no FILE.py:VARIABLE and no FILE.json; {hint}")


def _first_arch(op: str) -> Arch:
    """The first architecture that has kernels of an op written out, else that makes some at a call."""
    source = OPERATORS[op].kernels or op
    return next((arch for arch in Arch if kernels_of(source, arch)), None) or next(filter(partial(_serves, op), Arch))


def _serves(op: str, arch: Arch) -> bool:
    try:
        _choose(op, arch, Sizes())
    except UnsupportedArchitecture:
        return False
    return True


def _check_family(spec: AnySpec, wanted: Architecture) -> None:
    if wanted.family != spec.arch:
        raise ValueError(f"--arch {wanted.code} is of {wanted.family}, {spec.name} is a kernel for {spec.arch}")


def several(targets: Sequence[str], every: bool, arch: str | None, assignments: Sequence[str] = ()) -> list[AnySpec]:
    """The specs of ``gemmgen compile``: those named (an op name means all its kernels), or the whole catalog.

    ``--set`` edits each of those that are named.
    """
    if every == bool(targets):
        raise ValueError("name targets or say --all, one of the two; `gemmgen list` shows what there is")
    if every and assignments:
        raise ValueError("--set edits targets that are named, not those of --all; leave one of the two out")
    chosen = list(catalog.all_specs().values()) if every else [spec for name in targets for spec in _all_of(name)]
    wanted = architecture(arch) if arch else None
    found = [spec for spec in chosen if wanted is None or wanted.family == spec.arch]
    if not found:
        raise ValueError(f"no target is a kernel for {arch}; `gemmgen list` shows what there is")
    return [edit(spec, assignments) for spec in found]


def _all_of(target: str) -> list[AnySpec]:
    if target in OPERATORS:
        return [spec for arch in Arch for spec in kernels_of(target, arch)]
    return [_find(target, None, Sizes())]


def architecture(text: str) -> Architecture:
    """An architecture that we have a backend for, by its name in specs or by one of its chips."""
    try:
        found = resolve_architecture(text)
        Arch(found.family)
        return found
    except (UnsupportedArchitecture, ValueError):
        raise ValueError(
            f"--arch {text!r} has no backend; use {' or '.join(Arch)}, or a chip of theirs such as sm_103a"
        ) from None


def check_shares_no_k(where: str, op: str) -> None:
    """Refuse an operator of groups of k."""
    if op.startswith("k_grouped_"):
        raise ValueError(
            f"{where}: its kernel depends on how its groups share k, which commands are not told; name one that "
            "`gemmgen list` shows"
        )


def _choose(op: str, arch: Arch, sizes: Sizes) -> KernelSpec:
    """The kernel the op would take for these sizes with its defaults: D in bf16, no C."""
    from gemmgen.ops import spec_for

    check_shares_no_k(f"target {op}", op)
    return spec_for(op, sizes.m, sizes.n, sizes.k, SMS[arch], arch=arch)


def _load_variable(file: str, variable: str) -> AnySpec:
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"target {file}:{variable}: there is no file {file}")
    found = importlib.util.spec_from_file_location(f"gemmgen_target_{path.stem}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as for a script: the file may import its neighbours
    try:
        found.loader.exec_module(module)
    except ImportError as error:
        raise ImportError(
            f"target {file}:{variable}: an import in {file} failed: {error}; what it imports must lie beside it or be "
            "installed"
        ) from error
    except Exception as error:
        raise ValueError(f"target {file}:{variable}{_line(error, found.origin)}: {_reason(error)}") from error
    finally:
        sys.path.remove(folder)
    value = getattr(module, variable, None)
    if isinstance(value, AnySpec):
        return value
    specs = [name for name, item in vars(module).items() if isinstance(item, AnySpec)]
    there = f"the KernelSpecs there are {', '.join(specs)}" if specs else "the file defines none"
    raise ValueError(f"target {file}:{variable}: {variable!r} is no KernelSpec; {there}")


def _line(error: Exception, origin: str | None) -> str:
    """Which line of the file raised, or led to what did."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == origin]
    if isinstance(error, SyntaxError) and error.filename == origin:
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""


def _reason(error: Exception) -> str:
    """A rule of ours in its own words, anything else by its type."""
    if isinstance(error, ValueError):
        return sentence(error)
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _load_json(file: str) -> AnySpec:
    """The spec that ``emit --as json`` wrote; only layouts have a destination."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"target {file}: there is no file {file}")
    try:
        text = Path(file).read_text("utf-8")
        fields = json.loads(text, object_pairs_hook=partial(_without_doubles, file))
    except _DoubleKey:
        raise
    except ValueError as error:
        raise ValueError(
            f"target {file} is no JSON: {error}; `gemmgen emit TARGET --as json` prints what it should hold"
        ) from None
    kind = LayoutSpec if isinstance(fields, dict) and "destination" in fields else KernelSpec
    try:
        return kind.from_json(text)
    except ValidationError as error:
        raise ValueError(
            f"target {file} holds no spec: {sentence(error)}; `gemmgen emit TARGET --as json` prints one"
        ) from None


class _DoubleKey(ValueError):
    """A key that an object has twice, of which readers of JSON would take the last without a word."""


def _without_doubles(file: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        raise _DoubleKey(f"target {file} has {key!r} twice in one object; remove one of them")
    return found
