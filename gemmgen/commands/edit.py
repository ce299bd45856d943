"""``--set PATH=VALUE``: edits of one spec field by its path. The edited spec is validated like any other.

Knows the ir's JSON form and nothing of files, kernels or the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gemmgen.ir import AnySpec, Node


def edit(spec: AnySpec, assignments: Iterable[str]) -> AnySpec:
    """The spec with every ``path=value`` applied in order, then validated once."""
    assignments = tuple(assignments)
    if not assignments:
        return spec
    tree = _tree(spec)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise ValueError(f"--set {assignment!r}: write it as path=value, such as tile.n=256")
        _assign(tree, path, _value(text))
    return type(spec).from_json(json.dumps(tree))


def _tree(value: Any) -> Any:
    """Plain data with every field, also those at their defaults, which JSON leaves out: any of them may be set."""
    if isinstance(value, Node):
        return {name: _tree(getattr(value, name)) for name in type(value).model_fields}
    return [_tree(item) for item in value] if isinstance(value, tuple) else value


def _value(text: str) -> Any:
    """JSON where it is JSON (numbers, null, true, lists, objects), else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _assign(tree: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for depth, key in enumerate(parents):
        tree = tree[_key(tree, key, path, ".".join(parents[:depth]))]
    tree[_key(tree, last, path, ".".join(parents))] = value


def _key(node: Any, key: str, path: str, parent: str) -> str | int:
    """The dictionary key or list index that a path component means; lists are entered by name or by position."""
    if isinstance(node, dict) and key in node:
        return key
    if isinstance(node, list):
        named = [index for index, item in enumerate(node) if isinstance(item, dict) and item.get("name") == key]
        if named:
            return named[0]
        if key.isdecimal() and int(key) < len(node):
            return int(key)
    where = f"{parent!r}" if parent else "the spec"
    raise ValueError(f"--set {path}: {where} has no {key!r}; {_choices(node)}")


def _choices(node: Any) -> str:
    if isinstance(node, dict):
        return f"its fields are {', '.join(node)}"
    if isinstance(node, list):
        names = [
            str(item["name"]) if isinstance(item, dict) and "name" in item else str(i) for i, item in enumerate(node)
        ]
        return f"its entries are {', '.join(names) or 'none'}"
    return f"it is the value {node!r} and has no fields"
