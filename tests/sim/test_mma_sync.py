"""mma.sync with kinds and block scaling against the layout tables and a scalar reference that shares no code."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from core_ptx import Bench, kernel
from layout_tables import evaluate, layout_table

from gemmgen import sim
from gemmgen.sim.fragments import mma_sync_fragment
from gemmgen.sim.mma_scales import scale_lanes

TABLES = layout_table("sm120_mma_sync")
PACKED = TABLES["ops"]["mxf4_m16n8k64"]
BYTES = layout_table("mma_sync")["ops"]["e4m3_m16n8k32"]
SCALES = TABLES["block_scale"]
NARROW = {"e2m1": (4, 2), "e3m2": (6, 0), "e2m3": (6, 0)}  # bits of a code, where it starts in a container
TYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
}
EIGHT_BIT = ("e4m3", "e5m2", "e2m1", "e3m2", "e2m3")
PARAMS = "".join(f".param .u64 {name}, " for name in ("d", "a", "b", "c", "sa")) + ".param .u64 sb"


def value(fmt: str, code: int) -> float:
    """Value of one code by ml_dtypes."""
    return float(np.array([code], np.uint8).view(TYPES[fmt])[0])


def codes_of(rng: np.random.Generator, fmt: str, shape: tuple[int, int]) -> np.ndarray:
    """Finite random codes."""
    bits = NARROW.get(fmt, (8, 0))[0]
    codes = rng.integers(0, 1 << bits, shape)
    bad = [c for c in range(1 << bits) if not np.isfinite(value(fmt, c))]
    codes[np.isin(codes, bad)] = 1
    return codes


def registers(codes: np.ndarray, fmt: str, table: dict[str, Any], packed: bool) -> np.ndarray:
    """[lanes, registers]: each code where the table says; B's codes are [k, n]."""
    bits = 4 if packed else 8
    shift = 0 if packed else NARROW.get(fmt, (8, 0))[1]
    out = np.zeros((32, table["regs"]), np.uint32)
    for lane, row in enumerate(table["map"]):
        for element, (i, j) in enumerate(row):
            out[lane, element * bits // 32] |= np.uint32(int(codes[i, j]) << shift << element * bits % 32)
    return out


def scale_value(fmt: str, code: int) -> float:
    if fmt == "ue8m0":
        return float("nan") if code == 255 else 2.0 ** (code - 127)
    return value("e4m3", code & 0x7F)


class Product:
    """One random problem: matrices, their registers, scale registers, selectors and the scalar reference."""

    def __init__(self, a_fmt: str, b_fmt: str, k: int, count: int, fmt: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.k, self.count, self.fmt, self.formats = k, count, fmt, (a_fmt, b_fmt)
        self.table = PACKED if k == 64 else BYTES
        self.a, self.b = codes_of(rng, a_fmt, (16, k)), codes_of(rng, b_fmt, (k, 8))
        self.c = rng.integers(-8, 9, (16, 8)).astype(np.float32)
        low, high = (118, 136) if fmt == "ue8m0" else (40, 72)
        self.sa, self.sb = (rng.integers(low, high, (32, 4), np.uint8).astype(np.uint8) for _ in "ab")

    def scale(self, side: str, row: int, element: int, selector: tuple[int, int]) -> float:
        """The scale of an element by the layout table: which lane, which byte."""
        byte, thread = selector
        names = {"A": ("A_formula", "thread_id_a", "m"), "B": ("B_formula", "thread_id_b", "n")}[side]
        lane = evaluate(SCALES["lanes_read"][names[0]], **{names[1]: thread, names[2]: row})
        octets = (self.sa if side == "A" else self.sb)[lane]
        return scale_value(self.fmt, int(octets[byte + element * self.count // self.k]))

    def check(self, found: np.ndarray, a_selector: Any = (0, 0), b_selector: Any = (0, 0)) -> None:
        """Within float32 rounding of the terms."""
        expected, magnitude = self.expected(a_selector, b_selector)
        assert np.isfinite(expected).all() and (np.abs(found - expected) <= 1e-6 * magnitude).all()

    def scaled(self, side: str, selector: tuple[int, int]) -> list[list[float]]:
        """Scaled values of the rows of A or the columns of B."""
        codes, fmt = (self.a, self.formats[0]) if side == "A" else (self.b.T, self.formats[1])
        table = [value(fmt, code) for code in range(1 << NARROW.get(fmt, (8, 0))[0])]
        width = self.k // max(self.count, 1)
        rows = []
        for row, line in enumerate(codes.tolist()):
            scales = [
                self.scale(side, row, first, selector) if self.count else 1.0 for first in range(0, self.k, width)
            ]
            rows.append([table[code] * scales[k // width] for k, code in enumerate(line)])
        return rows

    def expected(self, a_selector: tuple[int, int], b_selector: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The sums, and the sums of magnitudes."""
        out, magnitude = np.zeros((16, 8)), np.zeros((16, 8))
        a, b = self.scaled("A", a_selector), self.scaled("B", b_selector)
        for m, n in itertools.product(range(16), range(8)):
            terms = [left * right for left, right in zip(a[m], b[n], strict=True)]
            out[m, n] = float(self.c[m, n]) + sum(terms)
            magnitude[m, n] = abs(self.c[m, n]) + sum(map(abs, terms))
        return out, magnitude

    def run(self, opcode: str, a_selector: Any = (0, 0), b_selector: Any = (0, 0)) -> np.ndarray:
        packed = self.k == 64
        a = registers(self.a, self.formats[0], self.table["A"], packed)
        b = registers(self.b, self.formats[1], self.table["B"], packed)
        c = registers_of_sums(self.c)
        return launch(opcode, a, b, c, self.sa, self.sb, a_selector, b_selector)


def registers_of_sums(matrix: np.ndarray) -> np.ndarray:
    places = np.array(BYTES["C"]["map"])
    return np.ascontiguousarray(matrix[places[..., 0], places[..., 1]])


def matrix_of_sums(held: np.ndarray) -> np.ndarray:
    places, out = np.array(BYTES["C"]["map"]), np.zeros((16, 8), np.float32)
    out[places[..., 0], places[..., 1]] = held
    return out


def load(name: str, first: int, count: int, kind: str = "b32") -> str:
    """Registers %r{first}.. of a lane from the array."""
    text = f"ld.param.u64 %d1, [{name}]; mul.wide.u32 %d2, %r1, {4 * count}; add.s64 %d1, %d1, %d2;"
    return text + "".join(f"ld.global.{kind} %r{first + i}, [%d1+{4 * i}];" for i in range(count))


def launch(opcode: str, a: Any, b: Any, c: Any, sa: Any, sb: Any, a_selector: Any, b_selector: Any) -> np.ndarray:
    """D [16, 8] of one instruction; a selector is a pair of numbers, or of register names set in the body."""
    body = "mov.u32 %r1, %tid.x;" + load("a", 10, 4) + load("b", 20, 2) + load("c", 30, 4)
    body += load("sa", 40, 1) + load("sb", 41, 1) + "mov.u16 %h1, 0; cvt.u16.u32 %h2, %r1; and.b16 %h3, %h2, 1;"
    scaled = f", {{%r40}}, {{{a_selector[0]}, {a_selector[1]}}}, {{%r41}}, {{{b_selector[0]}, {b_selector[1]}}}"
    body += (
        f"{opcode} {{%r50, %r51, %r52, %r53}}, {{%r10, %r11, %r12, %r13}}, {{%r20, %r21}}, {{%r30, %r31, %r32, %r33}}"
        + (scaled if "block_scale" in opcode else "")
        + ";"
    )
    body += "ld.param.u64 %d1, [d]; mul.wide.u32 %d2, %r1, 16; add.s64 %d1, %d1, %d2;"
    body += "st.global.v4.b32 [%d1], {%r50, %r51, %r52, %r53};"
    out = np.zeros((32, 4), np.float32)
    Bench().run(kernel(body, PARAMS), out, a.copy(), b.copy(), c.copy(), sa.copy(), sb.copy())
    return matrix_of_sums(out)


def scaled(kind: str, count: int, k: int, a: str, b: str, fmt: str) -> str:
    return f"mma.sync.aligned.kind::{kind}.block_scale.scale_vec::{count}X.m16n8k{k}.row.col.f32.{a}.{b}.f32.{fmt}"


def test_packed_fragments_are_those_of_the_table() -> None:
    t, v = np.indices((32, 32))
    for operand, rows, cols in (("A", "m", "k"), ("B", "k", "n")):
        fragment, table = mma_sync_fragment(operand, 64, 4), PACKED[operand]
        assert fragment.registers == table["regs"]
        count = 8 * table["regs"]
        for positions, name in ((fragment.row, rows), (fragment.col, cols)):
            by_lane = positions.transpose(0, 2, 1, 3).reshape(32, -1)
            expected = evaluate(table["formula"][name], t=t[:, :count], v=v[:, :count])
            np.testing.assert_array_equal(by_lane, expected)


def test_scale_lanes_are_those_of_the_table() -> None:
    read = SCALES["lanes_read"]
    for side, key in (("A", "A_lane_for_row[thread_id_a][m]"), ("B", "B_lane_for_col[thread_id_b][n]")):
        for thread, lanes in enumerate(read[key]):
            np.testing.assert_array_equal(scale_lanes(side, thread), lanes)
        held = SCALES["sfa_row_held_by_lane" if side == "A" else "sfb_col_held_by_lane"]
        for thread in range(len(read[key])):
            assert [held[lane] for lane in scale_lanes(side, thread)] == list(range(16 if side == "A" else 8))


@pytest.mark.parametrize(("a", "b"), list(itertools.product(EIGHT_BIT, EIGHT_BIT)))
def test_mxf8f6f4_multiplies_any_pair_of_types(a: str, b: str) -> None:
    problem = Product(a, b, 32, 1, "ue8m0", seed=3)
    problem.check(problem.run(scaled("mxf8f6f4", 1, 32, a, b, "ue8m0"), (1, 0), (2, 0)), (1, 0), (2, 0))


@pytest.mark.parametrize("a_selector", list(itertools.product(range(4), range(2))))
@pytest.mark.parametrize("b_selector", [(0, 0), (3, 1), (1, 2), (2, 3)])
def test_mxf8f6f4_selectors(a_selector: tuple[int, int], b_selector: tuple[int, int]) -> None:
    problem = Product("e4m3", "e2m1", 32, 1, "ue8m0", seed=4)
    problem.check(
        problem.run(scaled("mxf8f6f4", 1, 32, "e4m3", "e2m1", "ue8m0"), a_selector, b_selector), a_selector, b_selector
    )


FOUR_BIT = [("mxf4", 2, "ue8m0"), ("mxf4nvf4", 2, "ue8m0"), ("mxf4nvf4", 4, "ue4m3"), ("mxf4nvf4", 4, "ue8m0")]


@pytest.mark.parametrize(("kind", "count", "fmt"), FOUR_BIT)
@pytest.mark.parametrize("threads", [(0, 0), (1, 3), (0, 2)])
def test_packed_four_bit_kinds(kind: str, count: int, fmt: str, threads: tuple[int, int]) -> None:
    problem = Product("e2m1", "e2m1", 64, count, fmt, seed=5)
    for byte in range(0, 4, count):
        a_selector, b_selector = (byte, threads[0]), (2 - byte if count == 2 else 0, threads[1])
        problem.check(
            problem.run(scaled(kind, count, 64, "e2m1", "e2m1", fmt), a_selector, b_selector), a_selector, b_selector
        )


def test_scale_vector_may_be_left_out_where_there_is_one() -> None:
    eight, four = Product("e4m3", "e4m3", 32, 1, "ue8m0"), Product("e2m1", "e2m1", 64, 2, "ue8m0")
    for problem, kind in ((eight, "mxf8f6f4"), (four, "mxf4")):
        full = scaled(kind, problem.count, problem.k, *problem.formats, "ue8m0")
        short = full.replace(f".scale_vec::{problem.count}X", "")
        np.testing.assert_array_equal(problem.run(short), problem.run(full))


@pytest.mark.parametrize(("a", "b"), [("e4m3", "e4m3"), ("e2m1", "e5m2"), ("e3m2", "e2m1"), ("e2m3", "e2m3")])
def test_unscaled_kind_of_narrow_types(a: str, b: str) -> None:
    problem = Product(a, b, 32, 0, "", seed=6)
    problem.check(problem.run(f"mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.{a}.{b}.f32"), (0, 0), (0, 0))


def test_only_the_selected_lanes_and_bytes_are_read() -> None:
    """Every other byte is NaN (255)."""
    problem = Product("e4m3", "e4m3", 32, 1, "ue8m0", seed=7)
    opcode, a_selector, b_selector = scaled("mxf8f6f4", 1, 32, "e4m3", "e4m3", "ue8m0"), (2, 1), (3, 2)
    expected = problem.run(opcode, a_selector, b_selector)
    for octets, lanes, byte in ((problem.sa, scale_lanes("A", 1), 2), (problem.sb, scale_lanes("B", 2), 3)):
        kept = octets[lanes, byte].copy()
        octets[:] = 255
        octets[lanes, byte] = kept
    np.testing.assert_array_equal(problem.run(opcode, a_selector, b_selector), expected)
    problem.sa[scale_lanes("A", 1)[5], 2] = 255
    assert np.isnan(problem.run(opcode, a_selector, b_selector)[5]).all()


def test_scales_far_apart_cancel_without_overflow() -> None:
    problem = Product("e4m3", "e4m3", 32, 1, "ue8m0", seed=8)
    opcode = scaled("mxf8f6f4", 1, 32, "e4m3", "e4m3", "ue8m0")
    expected = problem.run(opcode)
    lanes_a, lanes_b = scale_lanes("A", 0), scale_lanes("B", 0)
    problem.sa[lanes_a, 0] += 110
    problem.sb[lanes_b, 0] -= 110
    np.testing.assert_array_equal(problem.run(opcode), expected)


def test_selectors_may_be_registers() -> None:
    problem = Product("e4m3", "e4m3", 32, 1, "ue8m0")
    opcode = scaled("mxf8f6f4", 1, 32, "e4m3", "e4m3", "ue8m0")
    np.testing.assert_array_equal(problem.run(opcode, ("%h1", "%h1")), problem.run(opcode))
    with pytest.raises(sim.Fault, match="byte-id-b differs between lanes"):
        problem.run(opcode, (0, 0), ("%h3", 0))


REFUSED_SELECTORS = [
    ("mxf8f6f4", 1, 32, "e4m3", "ue8m0", (4, 0), (0, 0), "byte-id-a is 4; with .scale_vec::1X it must be 0 or 1"),
    ("mxf8f6f4", 1, 32, "e4m3", "ue8m0", (0, 2), (0, 0), "thread-id-a is 2"),
    ("mxf8f6f4", 1, 32, "e4m3", "ue8m0", (0, 0), (0, 4), "thread-id-b is 4"),
    ("mxf4", 2, 64, "e2m1", "ue8m0", (0, 0), (1, 0), "byte-id-b is 1; with .scale_vec::2X it must be 0 or 2"),
    ("mxf4nvf4", 4, 64, "e2m1", "ue4m3", (2, 0), (0, 0), "byte-id-a is 2; with .scale_vec::4X it must be 0"),
]


@pytest.mark.parametrize(("kind", "count", "k", "element", "fmt", "a", "b", "message"), REFUSED_SELECTORS)
def test_selectors_out_of_range(
    kind: str, count: int, k: int, element: str, fmt: str, a: Any, b: Any, message: str
) -> None:
    with pytest.raises(sim.Fault, match=message):
        Product(element, element, k, count, fmt).run(scaled(kind, count, k, element, element, fmt), a, b)


@pytest.mark.parametrize("kind", ["mxf8f6f4.block_scale.scale_vec::1X", "f8f6f4"])
def test_a_code_outside_the_middle_of_its_container_is_a_fault(kind: str) -> None:
    """What ldmatrix b4x16_p64 leaves must be shifted by two before it is multiplied."""
    problem = Product("e2m1", "e4m3", 32, 1, "ue8m0")
    b, c = registers(problem.b, "e4m3", BYTES["B"], False), registers_of_sums(problem.c)
    unshifted = registers(problem.a, "e2m1", BYTES["A"], False) >> 2
    opcode = f"mma.sync.aligned.kind::{kind}.m16n8k32.row.col.f32.e2m1.e4m3.f32" + ".ue8m0" * ("mx" in kind)
    with pytest.raises(sim.Fault, match=r"operand A, register \d of lane \d+ holds 0x.*e2m1 lies in bits 2 to 5"):
        launch(opcode, unshifted, b, c, problem.sa, problem.sb, (0, 0), (0, 0))


ILLEGAL = [
    "mma.sync.aligned.m16n8k32.row.col.f32.e2m1.e4m3.f32",  # narrow types need a kind
    "mma.sync.aligned.kind::f8f6f4.m16n8k16.row.col.f32.e4m3.e4m3.f32",
    "mma.sync.aligned.kind::mxf4.block_scale.m16n8k64.row.col.f32.e2m1.e4m3.f32.ue8m0",
    "mma.sync.aligned.kind::mxf4nvf4.block_scale.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",  # no scale vector
    "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3",
    "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f16.e4m3.e4m3.f16.ue8m0",
    "mma.sync.aligned.kind::mxf8f6f4.m16n8k32.row.col.f32.e4m3.e4m3.f32",  # not scaled
    "mma.sync.aligned.m16n8k32.col.col.f32.e4m3.e4m3.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32",
    "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.bf16.bf16.f32",
]


@pytest.mark.parametrize("opcode", ILLEGAL)
def test_forms_that_do_not_exist_are_unknown(opcode: str) -> None:
    problem = Product("e2m1", "e2m1", 64, 2, "ue8m0")
    with pytest.raises(sim.UnknownInstruction, match="mma"):
        problem.run(opcode)
