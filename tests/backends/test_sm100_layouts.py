"""What an sm100 plan says about bits, bytes and columns against the vendor's tables, for every choice of the backend.

The encoders here are written from the field lists of the tables and share nothing with the backend.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from layout_tables import evaluate, layout_table

from gemmgen.backends import lower, render
from gemmgen.catalog.dense_sm100 import Factor, PairShape, bf16_gemm, scaled_gemm_nt, tf32_gemm_nt
from gemmgen.ir import DType, KernelSpec, Part, Plan, UmmaPlan

TABLES = layout_table("sm100_descriptors")
SCALES = layout_table("sm100_scale_columns")["tmem"]
NARROW = (DType.E4M3, DType.E5M2, DType.E2M1)
BLOCKS = (32, 128)
ALLOCATIONS = (32, 64, 128, 256, 512)


# ------------------------------------------------------------------------------------------------ enumeration


def shapes() -> Iterator[PairShape]:
    """Every width of an instruction, for one CTA and for pairs, plain and swapped."""
    for ctas, swap in itertools.product((1, 2), (False, True)):
        for n in range(16 * ctas, 257, 16 * ctas):
            yield PairShape(n, ctas, swap=swap)


def mxfp4(shape: PairShape) -> KernelSpec:
    return scaled_gemm_nt(Factor(DType.E2M1, 32), Factor(DType.E2M1, 32), shape)


def nvfp4(shape: PairShape) -> KernelSpec:
    return scaled_gemm_nt(Factor(DType.E2M1, 16), Factor(DType.E2M1, 16), shape, scale=DType.UE4M3X4)


def mxfp8(shape: PairShape) -> KernelSpec:
    return scaled_gemm_nt(Factor(DType.E4M3, 32), Factor(DType.E4M3, 32), shape)


def scaled(shape: PairShape) -> Iterator[KernelSpec]:
    for a, b, i, j in itertools.product(NARROW, NARROW, BLOCKS, BLOCKS):
        if (a, b, i, j) != (DType.E2M1, DType.E2M1, 32, 32):
            yield scaled_gemm_nt(Factor(a, i), Factor(b, j), shape, DType.F32 if i == j else DType.BF16)
    yield mxfp4(shape)
    yield nvfp4(shape)


def plain(shape: PairShape) -> Iterator[KernelSpec]:
    for layout in ("nt", "nn", "tn", "tt"):
        mn_major = layout[0] == "t" if shape.swap else layout[1] == "n"
        if not mn_major or shape.n // shape.ctas % 64 == 0:
            yield bf16_gemm(layout, shape, direct_store=layout == "tt")
    yield tf32_gemm_nt(shape)


def specs() -> Iterator[KernelSpec]:
    """All of them; of the scaled ones every width with one mix, and every mix with some widths."""
    for number, shape in enumerate(shapes()):
        yield from plain(shape)
        some = list(scaled(shape))
        yield from some if number % 7 == 0 else (some[number % len(some)], *some[-2:])


@pytest.fixture(scope="module")
def plans() -> list[tuple[KernelSpec, Plan, UmmaPlan]]:
    found = []
    for spec in specs():
        plan = lower(spec)
        assert isinstance(plan.mma, UmmaPlan)
        found.append((spec, plan, plan.mma))
    assert len(found) > 500
    return found


# ------------------------------------------------------------------------------------------------ instruction


def encode(fields: list[dict[str, Any]], values: dict[str, int]) -> int:
    """A descriptor from its fields by name; each value must fit its width."""
    word, known = 0, {field["name"]: field for field in fields}
    for name, value in values.items():
        field = known[name]
        assert 0 <= value < 1 << field["width"], (name, value)
        word |= value << field["first_bit"]
    return word


def code(kind: str, dtype: DType) -> int:
    """The format code of a factor, by the table."""
    name = {DType.BF16: "bf16", DType.F32: "tf32"}.get(dtype, dtype.value)
    table = next(codes for kinds, codes in TABLES["format_codes"].items() if f"kind::{kind}" in kinds.split(" / "))
    value: int = table[name]
    return value


def instruction(spec: KernelSpec, mma: UmmaPlan) -> int:
    """The instruction descriptor that the spec asks for, written from the spec and the field list."""
    body = spec.math.body
    lanes, columns = (
        (spec.operand("b"), spec.operand("a")) if mma.lane_axis == "n" else (spec.operand("a"), spec.operand("b"))
    )
    values = {
        "a_format": code(mma.call, lanes.dtype),
        "b_format": code(mma.call, columns.dtype),
        "a_major": int(lanes.inner != "k"),
        "b_major": int(columns.inner != "k"),
        "n_dim": (spec.tile.m if mma.lane_axis == "n" else spec.tile.n) // 8,
        "m_dim": 128 * body.ctas // 16,  # type: ignore[union-attr]
    }
    if mma.sfa is None:
        return encode(TABLES["dense_fields"], values | {"c_format": 1})
    kinds = TABLES["format_codes"]["scale_format"]
    scale = "ue4m3" if spec.operand("sfa").dtype == DType.UE4M3X4 else "ue8m0"
    return encode(TABLES["scaled_fields"], values | {"scale_format": kinds[scale]})


def test_instruction_descriptors_of_every_choice(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    for spec, _, mma in plans:
        assert mma.descriptor == instruction(spec, mma), spec.name


def test_every_format_and_kind_is_reached(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    assert {mma.call for _, _, mma in plans} == {"f16", "tf32", "mxf8f6f4", "mxf4", "mxf4nvf4"}
    mixes = {(s.operand("a").dtype, s.operand("b").dtype) for s, _, mma in plans if mma.call == "mxf8f6f4"}
    assert mixes == set(itertools.product(NARROW, NARROW))
    blocks = {(mma.sfa_block, mma.sfb_block) for _, _, mma in plans if mma.call == "mxf8f6f4"}
    assert blocks == set(itertools.product(BLOCKS, BLOCKS))


E4M3, E5M2, E2M1 = (Factor(each, 128) for each in NARROW)
EXAMPLES = {
    "f16kind_bf16_bf16_f32_M128_N256": bf16_gemm("nt", PairShape(256)),
    "f16kind_bf16_bf16_f32_M256_N256_cta2": bf16_gemm("nt", PairShape(256, 2)),
    "f16kind_bf16_bf16_f32_M128_N256_A_MN_B_MN": bf16_gemm("tn", PairShape(256)),
    "f16kind_bf16_bf16_f32_M128_N256_A_K_B_MN": bf16_gemm("nn", PairShape(256)),
    "tf32kind_f32_M128_N256": tf32_gemm_nt(PairShape(256)),
    "tf32kind_f32_M128_N128": tf32_gemm_nt(PairShape(128)),
    "mxf8f6f4_e4m3_e4m3_ue8m0_M128_N256": scaled_gemm_nt(E4M3, E4M3, PairShape(256)),
    "mxf8f6f4_e4m3_e4m3_ue8m0_M128_N128": scaled_gemm_nt(E4M3, E4M3, PairShape(128)),
    "mxf8f6f4_e4m3_e5m2_ue8m0_M128_N128": scaled_gemm_nt(E4M3, E5M2, PairShape(128)),
    "mxf8f6f4_e2m1_e4m3_ue8m0_M128_N128": scaled_gemm_nt(E2M1, E4M3, PairShape(128)),
    "mxf8f6f4_e4m3_e4m3_ue8m0_M256_N256_cta2": scaled_gemm_nt(E4M3, E4M3, PairShape(256, 2)),
    "mxf4_e2m1_e2m1_ue8m0_M128_N128": mxfp4(PairShape(128)),
    "mxf4nvf4_e2m1_e2m1_ue4m3_M128_N128": nvfp4(PairShape(128)),
    "mxf4nvf4_e2m1_e2m1_ue4m3_M256_N256_cta2": nvfp4(PairShape(256, 2)),
}
"""The vendor's worked values that name something the backend picks."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_instruction_descriptors_equal_worked_values(name: str) -> None:
    mma = lower(EXAMPLES[name]).mma
    assert isinstance(mma, UmmaPlan)
    example = TABLES["instr_examples"][name]
    assert mma.descriptor == int(example["value"], 16)
    for byte, value in example.get("by_sf_byte", {}).items():
        assert mma.descriptor | int(byte) << 29 | int(byte) << 4 == int(value, 16)


# ------------------------------------------------------------------------------------------------ shared memory


@pytest.mark.parametrize("name", ["K_128x64_bf16_SW128", "K_128x128_e4m3_SW128", "K_128x32_tf32_SW128"])
def test_k_major_steps_equal_the_tables(name: str) -> None:
    """Stride 1024, 128-byte swizzle, 32 bytes of k a step; the leading offset is not used with k contiguous."""
    example = TABLES["smem_examples"][name]
    fields, values = TABLES["smem_fields"], example["tcgen05_fields_k0"]
    leading = encode(fields, {"leading_byte_offset": values["leading_byte_offset"]})
    ours = encode(
        fields,
        {"start_address": int(example["base_address"], 16) >> 4, "stride_byte_offset": 1024 >> 4}
        | {"version": 1, "layout_type": 2},
    )
    steps = [int(text, 16) & ~leading for text in example["tcgen05_by_k"]]
    assert steps == [ours + step * 32 // 16 for step in range(len(steps))]


def test_m_contiguous_steps_equal_the_tables() -> None:
    """Atoms 64 wide and all of k high, one behind the other: LBO is the atom, SBO 8 rows of k, 16 rows a step."""
    example = TABLES["smem_examples"]["MN_128x64_bf16_SW128_k_fastest"]
    part = lower(bf16_gemm("tt", PairShape(128))).mainloop.part("a")
    assert (part.atom_elements, part.atoms, part.atom_bytes) == (64, 2, 64 * 128)
    ours = encode(
        TABLES["smem_fields"],
        {"start_address": int(example["base_address"], 16) >> 4, "leading_byte_offset": part.atom_bytes >> 4}
        | {"stride_byte_offset": 1024 >> 4, "version": 1, "layout_type": 2},
    )
    assert [int(text, 16) for text in example["tcgen05_by_k"]] == [ours + step * 16 * 128 // 16 for step in range(4)]


def test_emitted_descriptors_hold_those_numbers() -> None:
    """The text picks the layout by how an operand lies, with the tile's k and the step's rows."""
    for layout, major, k in (("nt", "KMajor", ""), ("tn", "MnMajor", ", 64, 16")):
        text = render(lower(bf16_gemm(layout, PairShape(128))))
        assert f"const gemmgen::Umma{major}<ab::A{k}> a;" in text
        assert f"const gemmgen::Umma{major}<ab::B{k}> b;" in text


# ------------------------------------------------------------------------------------------------ scales


def scale_parts(plan: Plan, mma: UmmaPlan) -> list[tuple[Part, int]]:
    return [
        (next(part for ring in plan.rings for part in ring.parts if part.operand == name), block)
        for name, block in ((mma.sfa, mma.sfa_block), (mma.sfb, mma.sfb_block))
        if name
    ]


def ids_and_words(plan: Plan, operand: int) -> list[tuple[int, int]]:
    """Per product of a K block, the scale id and the word of one operand as the emitted text has them."""
    place = r"tmem \+ TMEM_SF\w(?: \+ (\d+) \* [\w:]+)?,"
    ids = r"(?: \| gemmgen::scale_ids\((\d), (\d)\))?"
    found = re.findall(rf"(?:SHAPE|shape){ids}, {place} {place}", render(plan))
    assert len(found) == (plan.mma.steps if isinstance(plan.mma, UmmaPlan) else 0)
    return [(int(each[operand] or 0), int(each[2 + operand] or 0)) for each in found]


def moving(plan: Plan) -> tuple[int, int]:
    """How far each operand's scale id moves from one K block to the next."""
    found = re.search(r"u32 shape = SHAPE \+ kb % sf::EVERY \* gemmgen::scale_ids\((\d), (\d)\);", render(plan))
    return (int(found[1]), int(found[2])) if found else (0, 0)


TABLED = {
    "mxf8f6f4_1cta_128x128x128": mxfp8(PairShape(128)),
    "mxf8f6f4_2cta_256x256x128": mxfp8(PairShape(256, 2)),
    "mxf4_vs32_1cta_128x128x256": mxfp4(PairShape(128)),
    "mxf4nvf4_vs16_1cta_128x128x256": nvfp4(PairShape(128)),
    "mxf4nvf4_vs16_2cta_256x256x256": nvfp4(PairShape(256, 2)),
}


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", TABLED)
def test_scale_ids_and_columns_equal_the_tables(name: str, operand: int) -> None:
    """Each product's scales are where the vendor's fragments put them: byte, and columns behind the operand's first."""
    plan = lower(TABLED[name])
    table = SCALES[f"{name}.SF{'AB'[operand]}"]
    assert isinstance(plan.mma, UmmaPlan)
    part, block = scale_parts(plan, plan.mma)[operand]
    assert (table["mn"], table["block_size_k"]) == (part.count, block)
    groups = -(-part.count // 128)
    for step, (number, word) in enumerate(ids_and_words(plan, operand)):
        first = step * table["k_blocks_per_mma"]
        column = evaluate(table["formula"]["column"], mn=0, kb=first)
        assert (word * 4 * groups, number) == (column, evaluate(table["formula"]["byte"], mn=0, kb=first))
        assert number == evaluate(table["first_byte_of_mma_j"], j=step)
    assert moving(plan) == (0, 0)
    assert part.words * 4 * groups == 1 + max(column for _, _, column, _, _ in table["samples"])


def test_transposed_words_land_where_the_fragments_want_them() -> None:
    """Row r of 128 goes to byte 16 (r % 32) + 4 (r // 32); a copy of 32 rows of 16 bytes takes it to its column."""
    for name, table in SCALES.items():
        for mn, kb, column, byte, lane in table["samples"]:
            group, r = divmod(mn, 128)
            row, word = divmod(16 * (r % 32) + 4 * (r // 32), 16)
            groups = -(-table["mn"] // 128)
            placed = kb // 4 * 4 * groups + 4 * group + word // 4
            assert (row, placed, kb % 4) == (lane, column, byte), name


@pytest.mark.parametrize("a", BLOCKS)
@pytest.mark.parametrize("b", BLOCKS)
def test_a_word_of_coarse_scales_follows_the_k_block(a: int, b: int) -> None:
    """One byte a product for blocks of 32; one a K block of 128, from a word that serves four and has its own ring."""
    plan = lower(scaled_gemm_nt(Factor(DType.E4M3, a), Factor(DType.E5M2, b), PairShape(64)))
    for operand, block in enumerate((a, b)):
        assert ids_and_words(plan, operand) == [(step if block == 32 else 0, 0) for step in range(4)]
        assert moving(plan)[operand] == (1 if block == 128 else 0)
        (ring,) = (ring for ring in plan.rings for part in ring.parts if part.operand == f"sf{'ab'[operand]}")
        assert (ring.name, ring.every) == (("sf", 4) if block == 128 else ("ab", 1))


# ------------------------------------------------------------------------------------------------ tensor memory


def columns(plan: Plan, mma: UmmaPlan) -> list[tuple[int, int, str]]:
    """Every range of tensor memory the plan hands out."""
    acc = next(ring for ring in plan.rings if ring.columns)
    found = [
        (acc.column + slot * acc.columns, acc.column + (slot + 1) * acc.columns, f"acc[{slot}]")
        for slot in range(acc.slots)
    ]
    for part, _ in scale_parts(plan, mma):
        found.append((part.column, part.column + part.words * -(-part.count // 128) * 4, part.operand))
    return sorted(found)


def test_tensor_memory_is_handed_out_once_and_allocated(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    for spec, plan, mma in plans:
        found = columns(plan, mma)
        for (_, end, what), (start, _, other) in itertools.pairwise(found):
            assert end <= start, f"{spec.name}: {what} ends at {end}, {other} starts at {start}"
        used = found[-1][1]
        assert mma.tmem_columns == min(size for size in ALLOCATIONS if size >= used), spec.name
        acc = next(ring for ring in plan.rings if ring.columns)
        assert acc.columns >= mma.columns and acc.columns % 32 == 0


def test_two_accumulators_whenever_both_fit(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    for spec, plan, mma in plans:
        acc = next(ring for ring in plan.rings if ring.columns)
        scales = sum(end - start for start, end, what in columns(plan, mma) if not what.startswith("acc"))
        assert acc.slots == (2 if 2 * acc.columns + scales <= 512 else 1), spec.name
        assert acc.slots == 2 or (mma.columns > 224 and scales), spec.name


def test_shared_words_of_scales_are_whole_groups(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    """What a copy to tensor memory reads, 512 bytes a word and 128 rows, lies inside the slot."""
    for spec, plan, mma in plans:
        for part, block in scale_parts(plan, mma):
            groups = -(-part.count // 128)
            assert part.bytes == part.words * groups * 512 and part.offset % 128 == 0, spec.name
            assert part.words * 4 * block == part.per * spec.tile.k, spec.name
            axis = mma.lane_axis if part.operand == mma.sfa else {"m": "n", "n": "m"}[mma.lane_axis]
            assert part.count == {"m": spec.tile.m, "n": spec.tile.n}[axis], spec.name


# ------------------------------------------------------------------------------------------------ bytes


def test_transaction_bytes_are_what_the_boxes_bring(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    """Packed 4-bit elements count half of the bytes they take when spread; a pair counts both CTAs' boxes at the first,
    unless scales come with them, which each CTA transposes first."""
    for spec, plan, mma in plans:
        maps = {entry.operand: entry for entry in plan.tensor_maps}
        for ring in plan.rings:
            if ring.turns != "k":
                continue
            brought = 0
            for part in ring.parts:
                entry = maps[part.operand]
                bits = 8 if entry.element == "u8" else entry.dtype.bits
                boxes = part.words if part.copy_by == "words" else part.atoms
                brought += entry.box[0] * entry.box[1] * bits // 8 * boxes
            scales = any(part.copy_by == "words" for part in ring.parts)
            assert ring.tx_bytes == brought * (1 if scales else mma.ctas), (spec.name, ring.name)


def test_boxes_fill_this_ctas_share_of_the_tile(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    for spec, plan, mma in plans:
        maps = {entry.operand: entry for entry in plan.tensor_maps}
        share = {mma.a: 128, mma.b: mma.columns // mma.ctas}
        for operand, rows in share.items():
            part, entry = plan.mainloop.part(operand), maps[operand]
            packed = 2 if entry.element == "u8" and entry.dtype == DType.E2M1 else 1
            assert entry.box[0] * entry.box[1] * part.atoms * packed == rows * spec.tile.k, (spec.name, operand)
            assert part.bytes == rows * 128 and part.offset % 1024 == 0, (spec.name, operand)
            assert max(entry.box) <= 256 and entry.smem_swizzle == 128


def test_shared_memory_is_handed_out_once(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    for spec, plan, mma in plans:
        found = [
            (part.offset, part.offset + part.bytes * ring.slots, f"{ring.name}.{part.operand}")
            for ring in plan.rings
            for part in ring.parts
        ]
        found += [(first, first + 8 * slots, name) for name, first, slots in plan.barriers]
        found = sorted([*found, (mma.tmem_address, mma.tmem_address + 4, "address of tensor memory")])
        for (_, end, what), (start, _, other) in itertools.pairwise(found):
            assert end <= start, f"{spec.name}: {what} ends at {end}, {other} starts at {start}"
        assert found[-1][1] <= plan.shared_bytes <= 232448


def test_arrivals_follow_the_roles(plans: list[tuple[KernelSpec, Plan, UmmaPlan]]) -> None:
    """A commit is one arrival; a warp of the storing role is one, of every CTA of the pair at the leader."""
    for spec, plan, mma in plans:
        for ring in plan.rings:
            if ring.turns == "k":
                assert (ring.full_count, ring.empty_count) == (1, 1), spec.name
                scales = any(part.copy_by == "words" for part in ring.parts)
                assert ring.ready_count == (mma.ctas if scales else 0), spec.name
            elif ring.turns == "tile":
                assert (ring.full_count, ring.empty_count) == (1, 4 * mma.ctas), spec.name
