"""What ships for datacenter Blackwell: names say what specs are, and every form that inference calls is there."""

from __future__ import annotations

import itertools
import re

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.catalog import LAYOUTS
from gemmgen.catalog.grouped_sm100 import grouped_sm100
from gemmgen.ir import Arch, DType, KernelSpec, LaunchControl, Residual, RowGroups, Scale, Store, Tcgen05, split_axis

PLAIN = {name: spec for name, spec in catalog.specs().items() if name not in catalog.fused_specs()}
SPECS = {name: spec for name, spec in PLAIN.items() if spec.arch == Arch.SM100 and not spec.prologue}
FACTORS = r"_(e4m3|e2m1)x(\d+)_(e4m3|e2m1)x(\d+)"
NAME = re.compile(
    rf"sm100_(bf16_gemm|tf32_gemm|mxfp4_gemm|nvfp4_gemm|(?:fp8|fp8_fp4)_gemm)_(nt|nn|tn|tt)(?:{FACTORS})?"
    r"_(bf16|f32)(_c)?(_direct)?_(\d+)x(\d+)(_swap)?(_clc)?"
)


def facts(spec: KernelSpec) -> tuple[str, ...]:
    match = NAME.fullmatch(spec.name)
    assert match is not None, spec.name
    return match.groups(default="")


def test_every_name_says_what_its_spec_is() -> None:
    for name, spec in SPECS.items():
        op, layout, a, span_a, b, span_b, d, residual, direct, rows, columns, swap, clc = facts(spec)
        assert spec.name == name
        assert spec.operand("a").inner == ("k" if layout[0] == "n" else "m")
        assert spec.operand("b").inner == ("k" if layout[1] == "t" else "n")
        assert (spec.tile.m * spec.cluster.m, spec.tile.n * spec.cluster.n) == (int(rows), int(columns))
        body = spec.math.body
        assert isinstance(body, Tcgen05) and body.swap_ab == bool(swap) == (spec.tile.m < 128)
        assert isinstance(spec.schedule, LaunchControl) == bool(clc)
        assert spec.output.dtype == d
        assert any(isinstance(step, Residual) for step in spec.epilogue) == bool(residual)
        last = spec.epilogue[-1]
        assert isinstance(last, Store) and (last.through is None) == bool(direct)
        if a:
            assert op == ("fp8_fp4_gemm" if "e2m1" in (a, b) else "fp8_gemm")
            assert (spec.operand("a").dtype, spec.operand("b").dtype) == (a, b)
            assert [granularity(spec, each) for each in ("sfa", "sfb")] == [int(span_a), int(span_b)]


def granularity(spec: KernelSpec, scales: str) -> int:
    """Elements of k that a scale stands for; a word holds four."""
    return split_axis(spec.operand(scales).box[1])[1] // 4


def test_the_4_bit_kernels_are_packed_and_nvfp4_has_a_scale_for_the_tensor() -> None:
    for spec in SPECS.values():
        op = facts(spec)[0]
        body = spec.math.body
        assert isinstance(body, Tcgen05)
        assert body.packed == (op in ("mxfp4_gemm", "nvfp4_gemm"))
        scaled = [step.by for step in spec.epilogue if isinstance(step, Scale)]
        assert scaled == (["alpha"] if op == "nvfp4_gemm" else [])
        if body.packed:
            nv = op == "nvfp4_gemm"
            assert granularity(spec, "sfa") == granularity(spec, "sfb") == (16 if nv else 32)
            assert spec.operand("sfa").dtype == (DType.UE4M3X4 if nv else DType.UE8M0X4)


def test_the_forms_that_inference_calls_ship() -> None:
    """bf16 in every layout and output; each pair of granularities; each mix of 8 and 4 bits; small and paired tiles."""
    found = {(each[0], each[1], each[6], each[7]) for each in map(facts, SPECS.values())}
    for layout in LAYOUTS:
        assert {("bf16_gemm", layout, d, c) for d in ("bf16", "f32") for c in ("", "_c")} <= found
        assert ("fp8_gemm", layout, "bf16", "") in found
    assert {("fp8_gemm", "nt", d, c) for d in ("bf16", "f32") for c in ("", "_c")} <= found
    pairs = {each[2:6] for each in map(facts, SPECS.values()) if each[2]}
    assert {("e4m3", x, "e4m3", y) for x in ("32", "128") for y in ("32", "128")} <= pairs
    assert {("e4m3", x, "e2m1", "32") for x in ("32", "128")} <= pairs
    assert {("e2m1", "32", "e4m3", x) for x in ("32", "128")} <= pairs
    for op in ("bf16_gemm", "fp8_gemm", "mxfp4_gemm", "nvfp4_gemm"):
        tiles = {each[9:11] for each in map(facts, SPECS.values()) if each[0] == op}
        assert {
            ("16", "128"),
            ("64", "128"),
            ("128", "16"),
            ("128", "32"),
            ("128", "128"),
            ("256", "128"),
            ("256", "256"),
        } <= tiles
        assert any(each[0] == op and each[8] for each in map(facts, SPECS.values())), f"{op} has no direct store"


def test_few_rows_have_tiles_of_few_rows() -> None:
    """Whatever is multiplied, whatever comes out, with C or without: 16 rows, or 64 where A lies m-contiguous."""
    low = {each[:8] + each[9:10] for each in map(facts, SPECS.values()) if each[11]}
    for layout, d, residual in itertools.product(LAYOUTS, ("bf16", "f32"), ("", "_c")):
        assert ("bf16_gemm", layout, "", "", "", "", d, residual, "16" if layout[0] == "n" else "64") in low
    for d, residual in itertools.product(("bf16", "f32"), ("", "_c")):
        assert ("fp8_gemm", "nt", "e4m3", "128", "e4m3", "128", d, residual, "16") in low
        assert {(op, "nt", "", "", "", "", d, residual, "16") for op in ("mxfp4_gemm", "nvfp4_gemm")} <= low
    for factors in {each[:6] for each in map(facts, SPECS.values()) if each[2] and each[1] == "nt"}:
        assert (*factors, "bf16", "", "16") in low


def test_launch_control_and_tf32_ship_for_one_cta_and_for_pairs() -> None:
    taking = {(each[0], each[9]) for each in map(facts, SPECS.values()) if each[12]}
    operators = ("bf16_gemm", "fp8_gemm", "mxfp4_gemm", "nvfp4_gemm")
    assert taking == set(itertools.product(operators, ("128", "256")))
    assert {each[6:7] + each[9:10] for each in map(facts, SPECS.values()) if each[0] == "tf32_gemm"} == {
        ("f32", rows) for rows in ("16", "128", "256")
    }


def test_every_kernel_for_groups_of_rows_fits_and_has_a_name_of_its_own() -> None:
    specs = list(grouped_sm100())
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        plan = lower(spec)
        assert plan.groups == spec.groups and plan.mainloop.slots >= 3
        assert isinstance(spec.groups, RowGroups)
        assert spec.groups.by != "ids" or 128 % (spec.tile.m * spec.cluster.m) == 0
