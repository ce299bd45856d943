"""The Python side of the generated library: one documented module an op, with the signature of ``gemmgen.ops``.

Loads ``gemmgen.ops`` (and so torch) only to read signatures.
"""

from __future__ import annotations

import inspect
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemmgen.generate.operators import OPERATORS, Operator, kernels_of
from gemmgen.ir import Arch

LINE_LENGTH = 120


def python_files() -> dict[str, str]:
    """The package's ``__init__`` and a module for each op, formatted by black."""
    templates = Environment(
        loader=PackageLoader("gemmgen", "templates/python"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    module = templates.get_template("op.py.jinja")
    files = {"__init__.py": templates.get_template("init.py.jinja").render(ops=sorted(OPERATORS)), "py.typed": ""}
    files |= {f"{op.name}.py": module.render(**_view(op)) for op in OPERATORS.values()}
    return {path: _black(text) if path.endswith(".py") else text for path, text in files.items()}


def _view(op: Operator) -> dict[str, Any]:
    from gemmgen import ops

    signature = inspect.signature(getattr(ops, op.name))
    undocumented = [name for name in signature.parameters if name not in op.parameters]
    if undocumented:
        raise ValueError(f"op {op.name!r} takes {undocumented}, which gemmgen/generate/operators.py does not describe")
    return {
        "op": op,
        "signature": str(signature),
        "arguments": _forwarded(signature),
        "kernels": [spec for arch in Arch for spec in kernels_of(op.name, arch)],
    }


def _forwarded(signature: inspect.Signature) -> str:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return ", ".join(f"{p.name}={p.name}" if p.kind is keyword else p.name for p in signature.parameters.values())


def _black(text: str) -> str:
    import black

    # The target is named so that the interpreter that runs black does not matter.
    mode = black.Mode(line_length=LINE_LENGTH, target_versions={black.TargetVersion.PY311})
    return black.format_str(text, mode=mode)
