"""Specs and plans survive JSON, refuse unknown or coerced fields, and cannot be changed in place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from pydantic import ValidationError
from spec_strategies import specs

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.ir import KernelSpec, Plan, Tile


@settings(max_examples=60, deadline=None)
@given(specs())
def test_a_spec_equals_what_its_json_says(spec: KernelSpec) -> None:
    again = KernelSpec.from_json(spec.to_json())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.to_json() == spec.to_json()


def test_every_shipped_spec_and_its_plan_survive_json() -> None:
    for spec in catalog.specs().values():
        plan = lower(spec)
        assert KernelSpec.from_json(spec.to_json()) == spec
        assert Plan.from_json(plan.to_json()) == plan


def test_unknown_fields_are_refused() -> None:
    tree = json.loads(first().to_json())
    tree["tile"]["depth"] = 3
    with pytest.raises(ValidationError, match=r"tile\.depth\n.*not permitted"):
        KernelSpec.from_json(json.dumps(tree))


def test_values_are_not_coerced() -> None:
    tree = json.loads(first().to_json())
    tree["tile"]["m"] = "128"
    with pytest.raises(ValidationError, match=r"tile\.m\n.*valid integer"):
        KernelSpec.from_json(json.dumps(tree))
    with pytest.raises(ValidationError, match="valid integer"):
        Tile(m=128.0, n=128, k=128)  # type: ignore[arg-type]


def test_a_node_is_frozen_and_replace_validates() -> None:
    tile = Tile(m=128, n=128, k=128)
    with pytest.raises(ValidationError, match="frozen"):
        tile.m = 64  # type: ignore[misc]
    assert tile.replace(m=64) == Tile(m=64, n=128, k=128)
    with pytest.raises(ValidationError, match="multiple of 8"):
        tile.replace(n=100)


def first() -> KernelSpec:
    return next(iter(catalog.specs().values()))
