"""What ships for workstation Blackwell: names say what specs are, and every form that inference calls is there."""

from __future__ import annotations

import re

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.catalog import LAYOUTS
from gemmgen.catalog.grouped_sm120 import grouped_sm120
from gemmgen.ir import Arch, DType, KernelSpec, MmaSync, Residual, RowGroups, Scale, SplitK, Store, split_axis

PLAIN = {name: spec for name, spec in catalog.specs().items() if name not in catalog.fused_specs()}
SPECS = {name: spec for name, spec in PLAIN.items() if spec.arch == Arch.SM120 and not spec.prologue}
FACTORS = r"_(e4m3|e2m1)x(\d+)_(e4m3|e2m1)x(\d+)"
NAME = re.compile(
    rf"sm120_(bf16_gemm|mxfp4_gemm|nvfp4_gemm|(?:fp8|fp8_fp4)_gemm)_(nt|nn|tn|tt)(?:{FACTORS})?"
    r"_(bf16|f32)(_c)?(_direct)?_(\d+)x(\d+)(?:_k(\d+))?(_swap)?(?:_split(\d+))?(?:_x(\d))?"
)


def facts(spec: KernelSpec) -> tuple[str, ...]:
    match = NAME.fullmatch(spec.name)
    assert match is not None, spec.name
    return match.groups(default="")


def granularity(spec: KernelSpec, scales: str) -> int:
    """Elements of k that a scale stands for; a word holds four."""
    return split_axis(spec.operand(scales).box[1])[1] // 4


def test_every_name_says_what_its_spec_is() -> None:
    for name, spec in SPECS.items():
        op, layout, a, span_a, b, span_b, d, residual, direct, rows, columns, k_bytes, swap, splits, ctas = facts(spec)
        body = spec.math.body
        assert spec.name == name and isinstance(body, MmaSync) and body.swap_ab == bool(swap)
        assert spec.operand("a").inner == ("k" if layout[0] == "n" else "m")
        assert spec.operand("b").inner == ("k" if layout[1] == "t" else "n")
        assert (spec.tile.m, spec.tile.n) == (int(rows), int(columns))
        assert row_bytes(spec, body) == int(k_bytes or 128)
        assert spec.output.dtype == d and spec.ctas_per_sm == int(ctas or 1)
        assert (spec.schedule.splits if isinstance(spec.schedule, SplitK) else 1) == int(splits or 1)
        assert any(isinstance(step, Residual) for step in spec.epilogue) == bool(residual)
        last = spec.epilogue[-1]
        assert isinstance(last, Store) and (last.through is None) == bool(direct or swap)
        if a:
            assert op == ("fp8_fp4_gemm" if "e2m1" in (a, b) else "fp8_gemm")
            assert (spec.operand("a").dtype, spec.operand("b").dtype) == (a, b)
            assert [granularity(spec, each) for each in ("sfa", "sfb")] == [int(span_a), int(span_b)]


def row_bytes(spec: KernelSpec, body: MmaSync) -> int:
    """Bytes of k of a row in shared memory: 4-bit elements that are not packed take a byte."""
    a = spec.operand("a").dtype
    return spec.tile.k * (8 if a == DType.E2M1 and not body.packed else a.bits) // 8


def test_4_bit_factors_are_packed_and_nvfp4_has_a_scale_for_the_tensor() -> None:
    for spec in SPECS.values():
        op, body = facts(spec)[0], spec.math.body
        assert isinstance(body, MmaSync)
        both = {spec.operand("a").dtype, spec.operand("b").dtype} == {DType.E2M1}
        assert body.packed == both and (not both or op != "fp8_gemm")
        scaled = [step.by for step in spec.epilogue if isinstance(step, Scale)]
        assert scaled == (["alpha"] if op == "nvfp4_gemm" else [])
        if op == "nvfp4_gemm":
            assert granularity(spec, "sfa") == granularity(spec, "sfb") == 16
            assert spec.operand("sfa").dtype == DType.UE4M3X4


def test_the_forms_that_inference_calls_ship() -> None:
    """bf16 in every layout and output; every pair of granularities and mix of types; low tiles, splits, direct."""
    found = {(each[0], each[1], each[6], each[7]) for each in map(facts, SPECS.values())}
    for layout in LAYOUTS:
        assert {("bf16_gemm", layout, d, c) for d in ("bf16", "f32") for c in ("", "_c")} <= found
    assert {("fp8_gemm", "nt", d, c) for d in ("bf16", "f32") for c in ("", "_c")} <= found
    pairs = {each[2:6] for each in map(facts, SPECS.values()) if each[2]}
    assert {("e4m3", x, "e4m3", y) for x in ("32", "128") for y in ("32", "128")} <= pairs
    assert {("e4m3", x, "e2m1", "32") for x in ("32", "128")} <= pairs
    assert {("e2m1", "32", "e4m3", x) for x in ("32", "128")} <= pairs
    assert ("e2m1", "128", "e2m1", "128") in pairs
    for op in ("bf16_gemm", "fp8_gemm", "mxfp4_gemm", "nvfp4_gemm"):
        mine = [each for each in map(facts, SPECS.values()) if each[0] == op]
        tiles = {each[9:11] for each in mine}
        assert {("16", "128"), ("128", "16"), ("64", "64"), ("128", "128"), ("128", "256"), ("256", "128")} <= tiles
        assert any(each[8] for each in mine), f"{op} has no direct store"
        assert {each[13] for each in mine} >= {"", "2", "4", "8"} and any(each[14] for each in mine)


def test_every_kernel_for_groups_of_rows_fits_and_has_a_name_of_its_own() -> None:
    specs = list(grouped_sm120())
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        plan = lower(spec)
        assert plan.groups == spec.groups and plan.mainloop.slots >= 2
        assert isinstance(spec.groups, RowGroups) and 128 % spec.tile.m == 0
