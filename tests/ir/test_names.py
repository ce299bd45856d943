"""What rings, roles and kernels may not be called by, and operands that rings name twice, by the sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from gemmgen import catalog
from gemmgen.ir import Ring, Store

SPEC = catalog.fp8_gemm_nt(catalog.Shape(128, 128))


def staged_by(name: str) -> dict[str, Any]:
    """Another name of the ring that stages the output."""
    rings = tuple(each.replace(name=name) if each.turns == "store" else each for each in SPEC.rings)
    return {"rings": rings, "epilogue": (*SPEC.epilogue[:-1], Store(to="d", through=name))}


def multiplied_by(name: str) -> dict[str, Any]:
    """Another name of the role that multiplies."""
    return {"roles": (SPEC.load, SPEC.math.replace(name=name))}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (staged_by("math"), "ring 'math' is called as role 'math'; rename either"),
        (staged_by("load_boxes"), "ring 'load_boxes' is called as a function of role 'load'; rename either"),
        (multiplied_by("load_scales"), "role 'load_scales' is called as a function of role 'load'; rename either"),
        ({"name": "load"}, "spec 'load' is called as role 'load'; rename either"),
    ],
)
def test_what_stands_side_by_side_is_told_apart(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as raised:
        SPEC.replace(**changes)
    assert sentence in str(raised.value)


def test_a_ring_holds_an_operand_once() -> None:
    with pytest.raises(ValidationError, match="ring 'ab' holds 'a' twice; name it once"):
        Ring(name="ab", holds=("a", "b", "a"))


def test_one_ring_holds_an_operand() -> None:
    rings = (*SPEC.rings, Ring(name="more", holds=("a",)))
    load = SPEC.load.replace(body=SPEC.load.body.replace(fills=("ab", "more")))
    math = SPEC.math.replace(body=SPEC.math.body.replace(drains=("ab", "more")))
    with pytest.raises(ValidationError, match="rings 'ab' and 'more' both hold 'a'; leave it out of either"):
        SPEC.replace(rings=rings, roles=(load, math))


@pytest.mark.parametrize(
    ("what", "build", "words"),
    [
        ("ring", lambda name: Ring(name=name, holds=("a",)), ("std", "u32", "ptx", "int", "wait_for_barriers")),
        ("role", lambda name: SPEC.math.replace(name=name), ("p", "warp", "tmem", "new", "std", "bf16")),
        (
            "spec",
            lambda name: SPEC.replace(name=name),
            ("int", "main", "ptx", "gemmgen", "norm", "expf", "max", "from"),
        ),
        ("spec", lambda name: next(iter(catalog.layouts().values())).replace(name=name), ("int", "main")),
    ],
)
def test_words_of_emitted_text_are_no_names(what: str, build: Callable[[str], object], words: tuple[str, ...]) -> None:
    for name in words:
        with pytest.raises(ValidationError, match=f"{what} '{name}' is called by a word of Python or CUDA"):
            build(name)
