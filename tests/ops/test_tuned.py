"""Tuned files: which entry decides for which problem on which card, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmgen
from gemmgen import catalog, ops
from gemmgen.catalog import FUSED
from gemmgen.commands.tuning import AS_FAST
from gemmgen.ir import Activation, Bias, Cast, DType, Epilogue, HeadSplit, Operand, Store
from gemmgen.ops import tuned
from gemmgen.ops.selection import Choices, select
from gemmgen.ops.tuned.file import CardEntries, Entry, TunedFile, read
from gemmgen.runtime.sim_target import SimTarget

CARD, OP = "NVIDIA H100 80GB HBM3", "fp8_gemm_nt"
RULE = "sm90_fp8_gemm_nt_bf16_"


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(tuned.VARIABLE, raising=False)
    yield
    tuned.use_tuned()


def entry(m: int, tile: str, op: str = OP, n: int = 2112, k: int = 7168) -> Entry:
    return Entry(op=op, m=m, n=n, k=k, kernel=f"sm90_{op}_bf16_{tile}", us=9.5, rule=f"{RULE}64x16", rule_us=12.5)


def write(path: Path, *entries: Entry, card: str = CARD, sms: int = 132, arch: str = "sm90") -> Path:
    contents = TunedFile().with_entries(CardEntries(card=card, sms=sms, arch=arch, entries=entries))
    path.write_text(contents.text())
    return path


def tile(m: int, card: str | None = CARD, sms: int = 132, n: int = 2112, **choices: Any) -> str:
    return ops.spec_for(OP, m, n, 7168, sms, card=card, **choices).name.removeprefix(RULE)


def test_an_entry_decides_on_its_card_alone(tmp_path: Path) -> None:
    by_rule = tile(64), tile(64, card="another")
    gemmgen.use_tuned(write(tmp_path / "t.json", entry(64, "256x128")), shipped=False)
    assert tile(64) == "256x128" != by_rule[0]
    assert (tile(64, card="another"), tile(64, n=2120)) == (by_rule[1], tile(64, card="another", n=2120))
    assert tile(64, sms=114) == tile(64, card=None, sms=114)


@pytest.mark.parametrize(
    ("kernel", "ahead", "taken"),
    [("64x64", "64x64_s4_x2", "64x64_s4_x2"), ("64x64", None, "64x64"), ("64x64_s4_x2", None, "64x64_s4_x2")],
)
def test_what_was_as_fast_and_reads_ahead_is_launched_early(
    tmp_path: Path, kernel: str, ahead: str | None, taken: str
) -> None:
    found = entry(64, kernel).model_copy(update={"ahead": ahead and f"{RULE}{ahead}"})
    gemmgen.use_tuned(write(tmp_path / "t.json", found), shipped=False)
    early = ops.spec_for(OP, 64, 2112, 7168, 132, card=CARD, programmatic_launch=True)
    assert tile(64) == kernel and early.name == f"{RULE}{taken}_pdl"
    assert early.ahead == (("b", "sfb") if "_s4" in taken else ())


def test_three_ctas_an_sm_leave_an_early_launch_no_room(tmp_path: Path) -> None:
    gemmgen.use_tuned(write(tmp_path / "t.json", entry(64, "64x96_s1_x3")), shipped=False)
    early = ops.spec_for(OP, 64, 2112, 7168, 132, card=CARD, programmatic_launch=True)
    assert tile(64) == "64x96_s1_x3" and early.ctas_per_sm <= 2 and early.ahead == ("b", "sfb")


def test_a_card_without_a_name_takes_what_a_named_file_says_of_its_size(tmp_path: Path) -> None:
    """Simulated: the files of the package never count, so results do not depend on what was measured last."""
    path = write(tmp_path / "t.json", entry(64, "256x128"))
    assert not tuned.measured(tuned.Card(None, 132, "sm90"), [OP], 64, 2112, 7168)
    gemmgen.use_tuned(path)
    assert tile(64, card=None) == "256x128" and tile(64, card=None, sms=4) != "256x128"


def test_the_variable_names_files_and_the_first_one_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a.json", entry(64, "256x128"))
    second = write(tmp_path / "b.json", entry(64, "128x256"), entry(128, "128x256"))
    monkeypatch.setenv(tuned.VARIABLE, f"{first}:{second}")
    assert (tile(64), tile(128)) == ("256x128", "128x256")
    gemmgen.use_tuned(second)
    assert tile(64) == "128x256"


@pytest.mark.parametrize(
    ("m", "expected"), [(100, "near"), (126, "near"), (127, "exact"), (128, "far"), (129, "rule"), (64, "rule")]
)
def test_m_may_be_another_of_the_same_multiple_of_64(tmp_path: Path, m: int, expected: str) -> None:
    entries = (entry(127, "128x256"), entry(128, "256x128"), entry(125, "64x16"))
    gemmgen.use_tuned(write(tmp_path / "t.json", *entries), shipped=False)
    rule = tile(m, card="another")
    assert (
        tile(m)
        == {"near": "64x16" if m < 126 else "128x256", "exact": "128x256", "far": "256x128", "rule": rule}[expected]
    )


def test_few_rows_are_told_apart_by_8() -> None:
    assert [tuned.bucket(m) for m in (1, 8, 9, 17, 48, 64, 65, 128, 129)] == [8, 8, 16, 24, 48, 64, 128, 128, 192]


def test_an_entry_serves_the_same_tile_with_another_epilogue_and_no_other_form(tmp_path: Path) -> None:
    gemmgen.use_tuned(write(tmp_path / "t.json", entry(4096, "64x64")), shipped=False)
    fused = ops.spec_for(f"{OP}_mxfp8out", 4096, 2112, 7168, 132, card=CARD)
    assert (fused.tile.m, fused.tile.n) == (64, 64)
    other = {"d": gemmgen.DType.F32, "residual": True}
    assert tile(4096, **other) == tile(4096, card="another", **other)


@pytest.mark.parametrize("op", FUSED)
def test_calls_of_a_fused_operator_take_its_entry_before_the_product_s(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only ``spec_for`` by the operator's name: what is called names the product and its epilogue."""
    product, label, tile = *op.rsplit("_", 1), "128x128"
    other = {"fp8_gemm_nt": catalog.FP8_SHAPES, "bf16_gemm_nt": catalog.BF16_SHAPES}[product][2].label
    names = f"sm90_{op}_{tile}", f"sm90_{product}_bf16_{other}"
    entries = [
        Entry(op=each, m=8, n=128, k=128, kernel=name, us=1, rule=name, rule_us=1)
        for each, name in zip((op, product), names, strict=True)
    ]
    gemmgen.use_tuned(write(tmp_path / "t.json", *entries, sms=4), shipped=False)
    loaded: list[str] = []
    load = SimTarget.load
    monkeypatch.setattr(SimTarget, "load", lambda self, text: (loaded.append(text.entry), load(self, text))[1])
    a, b = torch.randn(8, 128).bfloat16(), torch.randn(128, 128).bfloat16()
    factors: Any = (a, b)
    if product == "fp8_gemm_nt":
        factors = ops.per_token_cast_to_fp8(a, use_ue8m0=False), ops.per_block_cast_to_fp8(b, use_ue8m0=False)
    with gemmgen.simulate("sm90"):
        getattr(ops, op)(*factors)
        getattr(ops, product)(*factors)
    assert loaded == list(names)
    assert label in names[0]


@pytest.mark.parametrize(
    ("op", "epilogue"),
    [
        (f"{OP}_mxfp8out", catalog.mxfp8_output(False)),
        (f"{OP}_mxfp8out", catalog.mxfp8_output(True)),
        (f"{OP}_fp8out", catalog.fp8_output("m")),
        (f"{OP}_fp8out", catalog.fp8_output("n")),
    ],
)
def test_an_entry_of_a_fused_operator_serves_whichever_way_scales_lie(
    op: str, epilogue: gemmgen.Epilogue, tmp_path: Path
) -> None:
    names = f"sm90_{op}_128x128", f"{RULE}64x128"
    entries = [
        Entry(op=each, m=64, n=2112, k=7168, kernel=name, us=1, rule=name, rule_us=1)
        for each, name in zip((op, OP), names, strict=True)
    ]
    gemmgen.use_tuned(write(tmp_path / "t.json", *entries), shipped=False)
    taken = ops.spec_for(OP, 64, 2112, 7168, 132, card=CARD, epilogue=epilogue)
    assert (taken.tile.m, taken.tile.n) == (128, 128) and epilogue.name in taken.name


# ------------------------------------------------------------------------------------------------ bias and activation


BIASES = (None, DType.F32, DType.BF16)
V, D = Operand(name="v", dtype=DType.F32, box=("n",)), Operand(name="out", dtype=DType.BF16, box=("m", "n"))


def chain(*steps: Any, d: Operand = D, v: Operand = V) -> Epilogue:
    return Epilogue(name="mine", operands=(v, d), steps=steps)


@pytest.mark.parametrize("activation", [None, *catalog.ACTIVATIONS])
@pytest.mark.parametrize("bias", BIASES)
def test_a_product_with_a_bias_and_an_activation_has_a_name(bias: DType | None, activation: str | None) -> None:
    """Whatever the types are; and by its name it is the one with D in bf16 and a bias in fp32."""
    for product in catalog.SM90_PRODUCTS:
        name = "_".join([product, *(["bias"] if bias else []), *([activation] if activation else [])])
        named = bias is not None or activation is not None
        for d in catalog.OUTPUTS:
            epilogue = catalog.finished_output(d, False, bias, activation)
            assert catalog.operators_of(product, epilogue) == ((name, product) if named else (product,))
        if named:
            usual = catalog.finished_output(DType.BF16, False, bias and DType.F32, activation)
            assert catalog.fused_operator(name, "sm90") == (product, usual)


ADD, RELU, ROUND, STORE = Bias(vector="v"), Activation(function="relu"), Cast(to=DType.BF16), Store(to="out")
OTHERS = {
    "residual": catalog.finished_output(DType.BF16, True, DType.F32, "relu"),
    "gate": catalog.finished_output(DType.BF16, False, DType.F32, "silu", "halves"),
    "later": chain(RELU, ADD, ROUND, STORE),
    "twice": chain(ADD, RELU, RELU, ROUND, STORE),
    "rows": chain(ADD, RELU, ROUND, STORE, v=V.replace(box=("m",))),
    "heads": chain(ADD, RELU, ROUND, STORE, d=D.replace(heads=HeadSplit(left=64, mid=32, right=64))),
    "slices": chain(ADD, RELU, ROUND, STORE, d=D.replace(box=("s", "m", "n"))),
    "added": chain(ADD, RELU, Store(to="out", accumulate=True), d=D.replace(dtype=DType.F32)),
    "quantised": catalog.fp8_output("m").replace(name="mine"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_chains_have_no_name_of_their_own(other: str) -> None:
    assert catalog.operators_of(OP, OTHERS[other]) == (OP,)


def test_an_author_s_chain_has_the_name_of_its_steps_behind_products_of_sm90() -> None:
    usual = chain(ADD, RELU, ROUND, STORE)
    assert catalog.operators_of(OP, usual) == (f"{OP}_bias_relu", OP)
    assert catalog.operators_of("mxfp4_gemm_nt", usual) == ("mxfp4_gemm_nt",)


@pytest.mark.parametrize("other", ["residual", "gate"])
def test_a_residual_or_a_gate_takes_the_product_s_entry(other: str, tmp_path: Path) -> None:
    own = entry(64, "128x128").model_copy(update={"op": f"{OP}_bias_relu"})
    silu = own.model_copy(update={"op": f"{OP}_bias_silu"})
    gemmgen.use_tuned(write(tmp_path / "t.json", own, silu, entry(64, "64x128")), shipped=False)
    for epilogue, rows in ((OTHERS[other], 64), (chain(ADD, RELU, ROUND, STORE), 128)):
        taken = ops.spec_for(OP, 64, 2112, 7168, 132, card=CARD, epilogue=epilogue)
        assert (taken.tile.m, taken.tile.n) == (rows, 128)


@pytest.mark.parametrize("product", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_calls_with_a_bias_and_an_activation_take_an_entry_of_their_name(
    product: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any type of bias and output, by keywords or not; without one they take the product's."""
    tiles = {f"{product}_bias_relu": "128x128", product: "64x128"}
    entries = [
        Entry(op=op, m=8, n=144, k=128, kernel=f"sm90_{product}_bf16_{tile}", us=1, rule="another", rule_us=2)
        for op, tile in tiles.items()
    ]
    gemmgen.use_tuned(write(tmp_path / "t.json", *entries, sms=4), shipped=False)
    loaded: list[str] = []
    load = SimTarget.load
    monkeypatch.setattr(SimTarget, "load", lambda self, text: (loaded.append(text.entry), load(self, text))[1])
    a, b, bias = torch.randn(8, 128).bfloat16(), torch.randn(144, 128).bfloat16(), torch.randn(144)
    factors: Any = (a, b)
    if product == "fp8_gemm_nt":
        factors = ops.per_token_cast_to_fp8(a, use_ue8m0=False), ops.per_block_cast_to_fp8(b, use_ue8m0=False)
    function: Any = getattr(ops, product)
    with gemmgen.simulate("sm90"):
        function(*factors, bias=bias, activation="relu")
        function(*factors, bias=bias.bfloat16(), activation="relu")
        function(*factors, bias=bias, activation="relu", out_dtype=torch.float32)
        gemmgen.fuse(product, chain(ADD, RELU, ROUND, STORE))(*factors, v=bias)
        function(*factors, bias=bias)
        function(*factors)
    assert [name.rpartition("_")[2] for name in loaded] == ["128x128"] * 4 + ["64x128"] * 2
    assert "_bias_bf16_relu_" in loaded[1] and "_mine_" in loaded[3]


def test_a_product_with_a_bias_is_launched_early_as_its_entry_says(tmp_path: Path) -> None:
    name = f"{OP}_bias_relu"
    found = entry(64, "64x64").model_copy(update={"op": name, "kernel": f"{RULE}64x64", "ahead": f"{RULE}64x64_s4_x2"})
    gemmgen.use_tuned(write(tmp_path / "t.json", found), shipped=False)
    plain, early = (
        ops.spec_for(name, 64, 2112, 7168, 132, card=CARD, programmatic_launch=early) for early in (False, True)
    )
    assert plain.name == f"{RULE}bias_f32_relu_64x64" and early.name == f"{RULE}bias_f32_relu_64x64_s4_x2_pdl"
    assert early.ahead == ("b", "sfb")


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
def test_the_names_choose_a_kernel_wherever_their_product_runs(arch: str) -> None:
    for name, (product, epilogue) in catalog.FINISHED.items():
        taken = ops.spec_for(name, 256, 512, 1024, 132, arch=arch)
        assert taken == ops.spec_for(product, 256, 512, 1024, 132, arch=arch, epilogue=epilogue)
        assert taken.name.startswith(f"{arch}_{product}_") and f"_{epilogue.name}_" in taken.name


@pytest.mark.parametrize(
    "name",
    [
        f"{OP}_relu_bias",
        f"{OP}_sigmoid",
        f"{OP}_bias_",
        f"{OP}_bias_bias",
        "fp8_gemm_nn_bias",
        "mxfp4_gemm_nt_relu",
        "m_grouped_fp8_gemm_nt_contiguous_bias",
    ],
)
def test_other_names_are_refused_and_told_the_forms(name: str) -> None:
    forms = "followed by _bias, _ACTIVATION or _bias_ACTIVATION, ACTIVATION being one of relu, squared_relu, gelu"
    with pytest.raises(ValueError, match=f"^operator: '{name}' is unknown; use one of .* bf16_gemm_tt {forms}"):
        ops.spec_for(name, 8, 128, 128, 4)


# ------------------------------------------------------------------------------------------------ other kernels


def test_a_kernel_that_is_no_more_is_no_choice(tmp_path: Path) -> None:
    gemmgen.use_tuned(write(tmp_path / "t.json", entry(64, "17x19")), shipped=False)
    selection = select(OP, 64, 2112, 7168, 132, Choices(card=CARD))
    assert selection.measured is None and tile(64) == tile(64, card="another")


def test_simulated_calls_take_a_named_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"sm90_bf16_gemm_nt_bf16_{catalog.BF16_SHAPES[2].label}"
    found = Entry(op="bf16_gemm_nt", m=8, n=16, k=64, kernel=name, us=1, rule=name, rule_us=1)
    gemmgen.use_tuned(write(tmp_path / "t.json", found, sms=4))
    a, b = torch.randn(8, 64).bfloat16(), torch.randn(16, 64).bfloat16()
    loaded: list[str] = []
    load = SimTarget.load
    monkeypatch.setattr(SimTarget, "load", lambda self, text: (loaded.append(text.entry), load(self, text))[1])
    with gemmgen.simulate("sm90"):
        d = ops.bf16_gemm_nt(a, b)
    assert loaded == [name]
    assert torch.allclose(d.float(), a.float() @ b.float().T, atol=0.1)


# ------------------------------------------------------------------------------------------------ files


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", entry(64, "a"), entry(8, "b"), entry(64, "c", n=8))
    contents = read(path)
    assert [(each.n, each.m) for each in contents.cards[0].entries] == [(8, 64), (2112, 8), (2112, 64)]
    assert TunedFile.model_validate_json(contents.text()) == contents
    assert sum(line.startswith('  {"op"') for line in path.read_text().splitlines()) == 3


def test_new_entries_take_the_place_of_old_ones_on_their_card() -> None:
    both = TunedFile().with_entries(CardEntries(card=CARD, sms=132, arch="sm90", entries=(entry(64, "a"),)))
    both = both.with_entries(CardEntries(card=CARD, sms=114, arch="sm90", entries=(entry(64, "b"),)))
    both = both.with_entries(
        CardEntries(card=CARD, sms=132, arch="sm90", entries=(entry(64, "c"), entry(65, "d"))),
    )
    tiles = {each.sms: [one.kernel[-1] for one in each.entries] for each in both.cards}
    assert tiles == {114: ["b"], 132: ["c", "d"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the whole: Invalid JSON"),
        ('{"format": 2}', "format: Input should be 1"),
        ('{"cards": [{"card": "x", "sms": 0, "arch": "sm90"}]}', r"cards.0.sms: Input should be greater than or"),
        ('{"cards": [{"card": "x", "sms": 1, "arch": "sm90", "entries": [{"op": "a"}]}]}', r"entries.0.m: Field requ"),
    ],
)
def test_what_is_no_tuned_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"tuned file {path}: .*{message}"):
        gemmgen.use_tuned(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file; gemmgen tune writes one"):
        gemmgen.use_tuned(tmp_path / "t.json")


def test_the_shipped_files_name_kernels_that_ship() -> None:
    folder = Path(tuned.__file__).parent
    assert {path.name for path in folder.glob("*.json")} == set(tuned.SHIPPED.values())
    for card, name in tuned.SHIPPED.items():
        assert json.loads((folder / name).read_text())["format"] == 1
        for each in read(folder / name).cards:
            assert each.card == card
            for one in each.entries:
                found = select(one.op, one.m, one.n, one.k, each.sms, Choices()).candidates
                known = one.kernel in {name for candidate in found for name in candidate.names}
                assert known and (
                    one.op in FUSED or one.kernel in catalog.specs()
                ), f"{name} names {one.kernel}: measure again with gemmgen tune"


@pytest.mark.parametrize("name", sorted(tuned.SHIPPED.values()))
def test_a_shipped_entry_is_the_rule_s_kernel_where_that_is_as_fast(name: str) -> None:
    """Within what ``gemmgen tune`` calls noise, or names a faster one."""
    for card in read(Path(tuned.__file__).with_name(name)).cards:
        for entry in card.entries:
            assert entry.kernel == entry.rule or entry.rule_us > AS_FAST * entry.us, entry
