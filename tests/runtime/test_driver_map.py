"""Tensor maps by the driver's encoder: what it is given, and the sentence when it refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as real
from fake_driver import FakeDriver

from gemmgen.runtime import driver, driver_map
from gemmgen.runtime.errors import DriverError
from gemmgen.runtime.tensor_maps import ELEMENT_NAMES, SWIZZLES, element_name
from gemmgen.sim.tensor_map_fields import ELEMENT_TYPES
from gemmgen.sim.tensor_map_fields import SWIZZLES as SIM_SWIZZLES


class Encoder(FakeDriver):
    """Keeps the arguments and answers with a map full of sevens."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, Any] = {}
        self.status = 0
        self.callback = driver_map._PROTOTYPE(self._encode)

    def cuGetProcAddress(self, name: bytes, *_: Any) -> tuple[Any, ...]:
        assert name == b"cuTensorMapEncodeTiled"
        return real.CUresult.CUDA_SUCCESS, ctypes.cast(self.callback, ctypes.c_void_p).value, 0

    def _encode(self, target: int, kind: int, rank: int, address: int, *arrays_and_modes: Any) -> int:
        dims, strides, box, steps, interleave, swizzle, _, fill = arrays_and_modes
        self.given = {
            "kind": real.CUtensorMapDataType(kind).name,
            "address": address,
            "dims": dims[:rank],
            "strides": strides[: rank - 1],
            "box": box[:rank],
            "steps": steps[:rank],
            "interleave": real.CUtensorMapInterleave(interleave).name,
            "swizzle": real.CUtensorMapSwizzle(swizzle).name,
            "fill": real.CUtensorMapFloatOOBfill(fill).name,
        }
        assert target % 64 == 0
        ctypes.memset(target, 7, 128)
        return self.status


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Encoder]:
    encoder = Encoder()
    monkeypatch.setattr(driver, "bindings", lambda: encoder)
    driver_map._encoder.cache_clear()
    yield encoder
    driver_map._encoder.cache_clear()


def test_the_fields_arrive_as_the_drivers_own(encoder: Encoder) -> None:
    data = driver_map.encode_tensor_map("bf16", 0x1000, (64, 32), (128,), (64, 8), swizzle="128b", oob_fill="nan")
    assert data == b"\x07" * 128
    assert encoder.given == {
        "kind": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
        "address": 0x1000,
        "dims": [64, 32],
        "strides": [128],
        "box": [64, 8],
        "steps": [1, 1],
        "interleave": "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "swizzle": "CU_TENSOR_MAP_SWIZZLE_128B",
        "fill": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
    }


@pytest.mark.parametrize(("span", "name"), [(0, "NONE"), (32, "32B"), (64, "64B"), (128, "128B")])
def test_a_swizzle_may_be_given_by_its_span(encoder: Encoder, span: int, name: str) -> None:
    driver_map.encode_tensor_map("u8", 0x1000, (16, 4), (16,), (16, 4), (1, 1), span)
    assert encoder.given["swizzle"] == f"CU_TENSOR_MAP_SWIZZLE_{name}"


def test_both_encoders_know_the_same_names_and_numbers() -> None:
    assert {element.name: element.code for element in ELEMENT_TYPES.values()} == driver_map.element_types()
    assert set(ELEMENT_NAMES.values()) <= set(ELEMENT_TYPES)
    assert {name: number for number, name in enumerate(SWIZZLES)} == {n: int(v) for n, v in SIM_SWIZZLES.items()}


def test_unknown_names_are_refused_with_the_list(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"dtype: 'e4m3' is no tensor map element type; use one of u8, "):
        element_name("e4m3")
    with pytest.raises(ValueError, match=r"swizzle: '96b' is unknown; use one of none, 32b, 64b, 128b or 0, 32"):
        driver_map.encode_tensor_map("u8", 0, (16,), (), (16,), swizzle="96b")


def test_a_refusal_prints_the_fields(encoder: Encoder) -> None:
    encoder.status = int(real.CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(DriverError) as error:
        driver_map.encode_tensor_map("u8", 0x1001, (16, 4), (24,), (16, 4))
    for part in ("0x1001", "(16, 4)", "(24,) bytes", "CUDA_ERROR_INVALID_VALUE", "as the driver says it"):
        assert part in str(error.value)
