"""Layout specs: each rule refuses with its sentence, and every shipped one survives JSON with its plan."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.ir import Arch, DType, LayoutPlan, LayoutSpec, Operand

SPEC = catalog.to_k_major(Arch.SM100, DType.E4M3)
PACK = catalog.pack_ue8m0(Arch.SM100)


def operand(name: str, dtype: DType = DType.E4M3, box: tuple[str, ...] = ("m", "k"), major: str = "k") -> Operand:
    return Operand(name=name, dtype=dtype, box=box, major=major)


@pytest.mark.parametrize(
    ("spec", "changes", "sentence"),
    [
        (SPEC, {"source": operand("source", box=("m", "n"), major="m")}, r"has box \('m', 'n'\); .* are m by k"),
        (SPEC, {"source": operand("destination", major="m")}, "both named 'destination'; rename one"),
        (SPEC, {"source": operand("source", box=("k", "m"))}, "write both in the same order"),
        (SPEC, {"source": operand("source")}, "both contiguous along k; nothing would change"),
        (SPEC, {"source": operand("source", box=("m/2", "k"), major="m")}, "a transpose needs m by k"),
        (SPEC, {"source": operand("source", DType.BF16)}, "no kernel makes e4m3 of bf16; f32 or ue8m0 scales become"),
        (PACK, {"source": operand("source", DType.F32, ("m", "k/4"))}, "four scales along k make a word"),
        (PACK, {"source": operand("source", DType.F32, major="m")}, "packed from scales contiguous along k"),
        (
            catalog.pack_bytes(Arch.SM100),
            {"source": operand("source", DType.UE8M0, ("m/128", "k"))},
            "rows of ue8m0 are not repeated",
        ),
        (SPEC, {"warps": 3}, "3 warps do not share 8 strips evenly; use 1, 2, 4 or 8"),
    ],
)
def test_a_rule_refuses_in_a_sentence(spec: LayoutSpec, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        spec.replace(**changes)


def test_every_shipped_layout_and_its_plan_survive_json() -> None:
    for spec in catalog.layouts().values():
        assert LayoutSpec.from_json(spec.to_json()) == spec
        assert LayoutPlan.from_json(lower(spec).to_json()) == lower(spec)


def test_an_unknown_operand_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="has no operand 'a'; it defines 'source', 'destination'"):
        SPEC.operand("a")


def test_no_layout_kernel_asks_for_more_shared_memory_than_every_gpu_gives() -> None:
    """A scale transposer of another library grew with the number of scales and passed what workstation parts have."""
    for spec in catalog.layouts().values():
        assert lower(spec).shared_bytes <= 48 * 1024
