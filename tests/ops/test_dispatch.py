"""The hot path without a GPU: prepared launches against a target that records, and blocks against packing anew."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from problems import bf16_problem, fp8_problem, whole_numbers
from reference import mn_major

import gemmgen
from gemmgen import catalog, sim
from gemmgen.ir import DType
from gemmgen.ops import block, copies, dense, dispatch, launch
from gemmgen.runtime.arguments import Problem, TensorView, pack
from gemmgen.runtime.tensor_maps import element_name

ADDRESS_AT = 24


class RecordingTarget:
    """Stands for a GPU: its tensor maps hold the address at a place of its own, its launches are remembered."""

    family = "sm90"
    sms = 132
    card = None

    def __init__(self, scrambled: bool = False) -> None:
        self.loaded: list[str] = []
        self.launches: list[tuple[tuple[int, int, int], bytes]] = []
        self.encodings = 0
        self.scrambled = scrambled

    def load(self, text: Any) -> str:
        self.loaded.append(text.entry)
        return str(text.entry)

    def address(self, tensor: torch.Tensor, name: str = "") -> int:
        return tensor.data_ptr()

    def current_stream(self) -> int:
        return 0

    def encode_tensor_map(
        self,
        dtype: str,
        address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        swizzle: str = "none",
        *_: str,
    ) -> bytes:
        self.encodings += 1
        assert address % 16 == 0 and all(stride % 16 == 0 for stride in strides)
        fields = f"{element_name(dtype)} {tuple(dims)} {tuple(strides)} {tuple(box)} {swizzle}".encode()
        image = bytearray(fields.ljust(128, b".")[:128])
        image[ADDRESS_AT : ADDRESS_AT + 8] = struct.pack("<Q", address)
        if self.scrambled:
            image[0] = address >> 4 & 0xFF
        return bytes(image)

    def launch(self, handle: str, grid: tuple[int, int, int], params: bytes, *_: object) -> None:
        self.launches.append((grid, params))


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingTarget]:
    recording = RecordingTarget()
    monkeypatch.setattr(dispatch, "current_target", lambda device: recording)
    for dispatchers in (dense._fp8_dispatcher, dense._bf16_dispatcher):
        dispatchers.cache_clear()  # launches on a target that is no GPU are not for others
    yield recording
    for dispatchers in (dense._fp8_dispatcher, dense._bf16_dispatcher):
        dispatchers.cache_clear()


def prepare(dispatcher: dispatch.Dispatcher, slots: tuple[torch.Tensor, ...]) -> launch.Prepared:
    """What a first call with CUDA tensors does."""
    return dispatcher.prepare(slots, dispatcher.check(slots))


def fp8_dispatcher() -> dispatch.Dispatcher:
    dispatcher, _ = dense.fp8_call(*fp8_call())
    return dispatcher


def fp8_call() -> tuple[Any, ...]:
    problem = fp8_problem(8, 16, 256)
    d = torch.zeros(8, 16, dtype=torch.bfloat16)
    return problem.a, problem.sfa, problem.b, problem.sfb, None, d


def test_a_prepared_launch_equals_packing_anew(target: RecordingTarget) -> None:
    dispatcher = fp8_dispatcher()
    a, sfa, b, sfb, _, d = fp8_call()
    prepared = prepare(dispatcher, (a, sfa, b, sfb, d))
    encodings = target.encodings
    for slots in ((a, sfa, b, sfb, d), (a.clone(), sfa.clone(), b.clone(), sfb.clone(), d.clone())):
        prepared(slots)
        assert target.encodings == encodings, "a hot launch encodes nothing"
        grid, params = target.launches[-1]
        assert grid == (1, 1, 1) and len(params) % 64 == 0
        views = {
            name: TensorView(t.data_ptr(), tuple(t.shape), t.stride())
            for name, t in zip(dispatcher.names, slots, strict=True)
        }
        problem = Problem({"m": 8, "n": 16, "k": 256}, views, {})
        fresh = pack(prepared.launch.kernel.plan, problem, dispatch.encoder(target))  # type: ignore[arg-type]
        encodings = target.encodings
        assert params[: len(fresh)] == fresh


def test_an_encoder_that_hides_the_address_is_asked_each_time(target: RecordingTarget) -> None:
    target.scrambled = True
    dispatcher = fp8_dispatcher()
    a, sfa, b, sfb, _, d = fp8_call()
    prepared = prepare(dispatcher, (a, sfa, b, sfb, d))
    encodings = target.encodings
    prepared((a.clone(), sfa, b, sfb, d))
    assert target.encodings > encodings


def test_the_simulators_maps_are_patchable_too() -> None:
    spec = catalog.bf16_gemm("nt", catalog.Shape(64, 64, groups=1))
    plan = gemmgen.backends.lower(spec)
    shapes = {"a": (64, 128), "b": (64, 128), "d": (64, 64)}

    def problem(start: int) -> Problem:
        views = {
            name: TensorView(start + index * 2**20, shape, (shape[1], 1))
            for index, (name, shape) in enumerate(shapes.items())
        }
        return Problem({"m": 64, "n": 64, "k": 128}, views, {})

    class Simulated(RecordingTarget):
        def encode_tensor_map(self, dtype: str, *fields: Any) -> bytes:
            self.encodings += 1
            return sim.encode_tensor_map(element_name(dtype), *fields)

    simulated = Simulated()
    encode = dispatch.encoder(simulated)  # type: ignore[arg-type]
    build = block.block_builder(plan, list(shapes), (), problem(2**32), encode)
    encodings = simulated.encodings
    moved = problem(2**34 + 4096)
    built = build([view.address for view in moved.tensors.values()], ())
    assert simulated.encodings == encodings
    assert built == block.whole_block(plan, moved, encode)


def test_every_scalar_is_exchanged_too() -> None:
    spec = scaled_spec()
    plan = gemmgen.backends.lower(spec)
    encode = dispatch.encoder(RecordingTarget())  # type: ignore[arg-type]
    views = {name: TensorView(4096, (16, 64), (64, 1)) for name in ("a", "b", "d")}
    views["bias"] = TensorView(8192, (16,), (1,))
    sizes = {"m": 16, "n": 16, "k": 64}
    order = sorted(views)
    build = block.block_builder(plan, order, ["alpha"], Problem(sizes, views, {"alpha": 0.0}), encode)
    wanted = block.whole_block(plan, Problem(sizes, views, {"alpha": 2.5}), encode)
    assert build([views[name].address for name in order], (2.5,)) == wanted


def scaled_spec() -> gemmgen.KernelSpec:
    plain = catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1))
    extra = (
        gemmgen.Operand(name="alpha", dtype=DType.F32, box=()),
        gemmgen.Operand(name="bias", dtype=DType.F32, box=("n",)),
    )
    return plain.replace(
        name="scaled",
        operands=(*plain.operands, *extra),
        epilogue=(gemmgen.Scale(by="alpha"), gemmgen.Bias(vector="bias"), *plain.epilogue),
    )


def test_empty_outputs_ask_for_no_target(target: RecordingTarget) -> None:
    """P11: M or N of 0 touches neither the target nor a tensor map."""
    dispatcher = fp8_dispatcher()
    for m, n in ((0, 16), (8, 0), (0, 0)):
        problem = fp8_problem(m, n, 256)
        dispatcher((problem.a, problem.sfa, problem.b, problem.sfb, torch.zeros(m, n, dtype=torch.bfloat16)))
    assert not target.loaded and not target.encodings and not target.launches


def test_a_hot_launch_still_judges_overlap(target: RecordingTarget) -> None:
    a, b = bf16_problem(8, 64, 64)
    dispatcher, slots = dense.bf16_call(a, b, None, torch.zeros(8, 64, dtype=torch.bfloat16))
    prepared = prepare(dispatcher, slots)
    prepared(slots)
    with pytest.raises(ValueError, match=r"^d: its memory .* overlaps a"):
        prepared((a, b, a))
    wide = torch.zeros(8, 128, dtype=torch.bfloat16)
    dispatcher, slots = dense.bf16_call(wide[:, :64], b, None, wide[:, 64:])
    prepare(dispatcher, slots)(slots)
    assert len(target.launches) == 2


def test_hot_calls_are_found_by_metadata(target: RecordingTarget) -> None:
    a, b = bf16_problem(8, 16, 64)
    d = torch.zeros(8, 16, dtype=torch.bfloat16)
    dispatcher, slots = dense.bf16_call(a, b, None, d)
    seen: dict[object, launch.Prepared] = {}
    assert not launch.relaunch(seen, slots)
    seen[launch.metadata(slots)] = prepare(dispatcher, slots)
    assert launch.relaunch(seen, (a.clone(), b, d.clone())) and len(target.launches) == 1
    assert not launch.relaunch(seen, (a[:7], b, d[:7]))
    assert not launch.relaunch(seen, (a.clone().requires_grad_(), b, d))
    with torch.no_grad():
        assert launch.relaunch(seen, (a.clone().requires_grad_(), b, d))


@pytest.mark.parametrize(
    ("sfa", "major", "copies"),
    [
        (torch.zeros(8, 2), "k", 0),
        (mn_major(torch.ones(8, 2)), "m", 0),
        (mn_major(torch.ones(7, 2)), "m", 0),
        (torch.zeros(8, 5)[:, :2], "k", 0),
        (torch.zeros(2, 7).T, "m", 1),
        (torch.zeros(2, 9)[:, 1:].T, "m", 1),
        (torch.zeros(1, 2).expand(8, 2), "k", 0),
    ],
)
def test_scales_of_a_are_used_as_they_lie(target: RecordingTarget, sfa: torch.Tensor, major: str, copies: int) -> None:
    dispatcher = fp8_dispatcher()
    problem = fp8_problem(sfa.shape[0], 16, 256)
    d = torch.zeros(sfa.shape[0], 16, dtype=torch.bfloat16)
    prepared = prepare(dispatcher, (problem.a, sfa, problem.b, problem.sfb, d))
    assert len(prepared.copied) == copies
    assert prepared.launch.kernel.spec.operand("sfa").inner == {"m": "m", "k": "k/128"}[major]


@pytest.mark.parametrize(
    ("sfa", "sfb", "name", "copies"),
    [
        ("k", "k", "_1d1d_ksf_", 0),
        ("m", "m", "_1d1d_bf16", 0),
        ("m", "k", "_1d1d_bf16", 1),
        ("k", "m", "_1d1d_bf16", 1),
    ],
)
def test_scales_per_row_of_b(target: RecordingTarget, sfa: str, sfb: str, name: str, copies: int) -> None:
    problem = fp8_problem(8, 16, 256, columns=1)
    lie = {"k": lambda scales: scales, "m": mn_major}
    d = torch.zeros(8, 16, dtype=torch.bfloat16)
    dispatcher, slots = dense.fp8_call(problem.a, lie[sfa](problem.sfa), problem.b, lie[sfb](problem.sfb), None, d)
    prepared = prepare(dispatcher, slots)
    assert name in prepared.launch.kernel.spec.name
    assert len(prepared.copied) == copies


@pytest.mark.parametrize(("m", "k", "turned"), [(8, 1024, False), (4096, 8192, True)])
@pytest.mark.parametrize("columns", [128, 1])
def test_scales_along_k_are_turned_where_a_launch_more_is_less(
    target: RecordingTarget, m: int, k: int, turned: bool, columns: int
) -> None:
    """Of few rows they are gathered; a kernel that gathers those of many takes longer than a copy and another one."""
    n = 2048
    a, b = torch.zeros(m, k, dtype=torch.float8_e4m3fn), torch.zeros(n, k, dtype=torch.float8_e4m3fn)
    sfa, sfb = torch.rand(m, k // 128), torch.rand(n // columns, k // 128)
    dispatcher, slots = dense.fp8_call(a, sfa, b, sfb, None, torch.zeros(m, n, dtype=torch.bfloat16))
    prepared = prepare(dispatcher, slots)
    assert ("_ksf_" in prepared.launch.kernel.spec.name) is not turned
    assert [prepared.names[at] for at, _ in prepared.copied] == ["sfa", "sfb"][: turned * (1 + (columns == 1))]
    for at, copy in prepared.copied:
        copied = copy(slots[at])
        assert copied.stride() == (1, slots[at].shape[0]) and torch.equal(copied, slots[at])


def test_a_first_call_copies_once(target: RecordingTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """What judges a copy, and prepares the launch that makes it, looks at an empty tensor."""
    made: list[str] = []
    turned = copies.turned

    def counted(scales: torch.Tensor) -> torch.Tensor:
        made.extend([scales.device.type] * (not scales.is_meta))
        return turned(scales)

    monkeypatch.setattr(copies, "turned", counted)
    problem, d = fp8_problem(7, 16, 256), torch.zeros(7, 16, dtype=torch.bfloat16)
    sfa = torch.zeros(2, 7).T
    dispatcher, slots = dense.fp8_call(problem.a, sfa, problem.b, problem.sfb, None, d)
    prepared = prepare(dispatcher, slots)
    assert len(prepared.copied) == 1 and not made
    prepared(slots)
    assert made == ["cpu"]
    with gemmgen.simulate("sm90", sms=1):
        dispatcher(slots)
    assert made == ["cpu"] * 2


@pytest.mark.parametrize(
    ("a", "b", "layout"), [(False, False, "nt"), (False, True, "nn"), (True, True, "tn"), (True, False, "tt")]
)
def test_majorness_is_read_off_the_strides(target: RecordingTarget, a: bool, b: bool, layout: str) -> None:
    """Whatever the name of the function, a transposed view picks the kernel of its layout."""
    left, right = bf16_problem(8, 16, 64)
    d = torch.zeros(8, 16, dtype=torch.bfloat16)
    left = left.T.contiguous().T if a else left
    right = right.T.contiguous().T if b else right
    dispatcher, slots = dense.bf16_call(left, right, None, d)
    prepared = prepare(dispatcher, slots)
    assert f"bf16_gemm_{layout}_" in prepared.launch.kernel.spec.name


@pytest.mark.parametrize(
    ("d", "direct"),
    [
        (torch.zeros(8, 16, dtype=torch.bfloat16), False),
        (torch.zeros(8, 24, dtype=torch.bfloat16)[:, :16], False),
        (torch.zeros(8, 20, dtype=torch.bfloat16)[:, :16], True),
        (torch.zeros(8, 24, dtype=torch.bfloat16)[:, 3:19], True),
    ],
)
def test_outputs_that_tma_cannot_store_are_stored_directly(
    target: RecordingTarget, d: torch.Tensor, direct: bool
) -> None:
    a, b = bf16_problem(8, 16, 64)
    for c in (None, whole_numbers(8, 16, torch.bfloat16)):
        dispatcher, slots = dense.bf16_call(a, b, c, d)
        prepared = prepare(dispatcher, slots)
        assert ("_direct_" in prepared.launch.kernel.spec.name) == direct


def test_metadata_tells_calls_apart() -> None:
    a, b = bf16_problem(8, 16, 64)
    assert launch.metadata((a, b)) == launch.metadata((a.clone(), b.clone()))
    buffer = torch.zeros(8, 72, dtype=torch.bfloat16)
    others = [(a[:7], b), (buffer[:, :64], b), (buffer[:, 1:65], b), (a.half(), b)]
    keys = [launch.metadata(slots) for slots in others]
    assert len({*keys, launch.metadata((a, b))}) == len(others) + 1
