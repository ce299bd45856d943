"""Rules of what is read by lanes, ahead of a launch or with a hint, by the sentence that says what to change."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gemmgen import catalog
from gemmgen.ir import ClusterSplitK, KernelSpec, Role, SplitK

PLAIN = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1))
SPLIT = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1, splits=2))
EARLY = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1, splits=2), programmatic_launch=True)


def role(spec: KernelSpec, name: str, **changes: Any) -> dict[str, tuple[Role, ...]]:
    """The roles with another body of one."""
    return {
        "roles": tuple(
            each.replace(body=each.body.replace(**changes)) if each.name == name else each for each in spec.roles
        )
    }


RULES: dict[str, tuple[KernelSpec, dict[str, Any], str]] = {
    "lanes where splits of k change": (
        SPLIT,
        {"schedule": SplitK(splits=None)},
        "role 'math' reads ('sfb',) itself; with schedule split_k let a ring hold them, or use Persistent",
    ),
    "lanes read other operands": (
        SPLIT,
        role(SPLIT, "math", reads=("sfa",)),
        "role 'math' reads 'sfa'; only the scales of B, 'sfb', come by no ring",
    ),
    "lanes and a ring": (
        SPLIT,
        {"rings": (SPLIT.rings[0].replace(holds=("a", "b", "sfa", "sfb")), *SPLIT.rings[1:])},
        "role 'math' reads 'sfb' itself, but ring 'ab' holds it; remove one",
    ),
    "ahead of nothing": (SPLIT, {"ahead": ("b",)}, "nothing is read ahead of a launch that waits; set programmatic_"),
    "ahead in a persistent kernel": (
        PLAIN,
        {"ahead": ("b",), "programmatic_launch": True},
        "reads ('b',) ahead; only a schedule cluster_split_k does, else leave it out",
    ),
    "ahead of an output": (
        EARLY,
        {"ahead": ("d",)},
        "reads 'd' ahead, which no role loads; known are ['a', 'b', 'sfa'",
    ),
    "hint for what is not copied": (
        SPLIT,
        role(SPLIT, "load", evict_first=("sfb",)),
        "role 'load' has a hint for 'sfb', which it does not copy; it copies ['a', 'b', 'sfa']",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_a_sentence(rule: str) -> None:
    spec, changes, sentence = RULES[rule]
    with pytest.raises(ValidationError) as raised:
        spec.replace(**changes)
    assert sentence in str(raised.value)


def test_weights_and_their_scales_are_what_a_product_reads_ahead() -> None:
    assert EARLY.ahead == ("b", "sfb") and SPLIT.ahead == ()
    assert KernelSpec.from_json(EARLY.to_json()) == EARLY
    assert isinstance(EARLY.schedule, ClusterSplitK) and EARLY.schedule.splits == 2
