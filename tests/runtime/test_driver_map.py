"""Tensor maps by the driver's encoder: what it is given, and the sentence when it refuses."""

from __future__ import annotations

import ctypes
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

    given: tuple[Any, ...] = ()
    status: Any = real.CUresult.CUDA_SUCCESS

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[Any, ...]:
        self.given = arguments
        tensor_map = real.CUtensorMap()
        ctypes.memset(tensor_map.getPtr(), 7, 128)
        return self.status, tensor_map


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    encoder = Encoder()
    monkeypatch.setattr(driver, "bindings", lambda: encoder)
    monkeypatch.setattr(driver_map, "bindings", lambda: encoder)
    return encoder


def test_the_fields_arrive_as_the_drivers_own(encoder: Encoder) -> None:
    data = driver_map.encode_tensor_map("bf16", 0x1000, (64, 32), (128,), (64, 8), swizzle="128b", oob_fill="nan")
    kind, rank, address, dims, strides, box, steps, interleave, swizzle, _, fill = encoder.given
    assert data == b"\x07" * 128
    assert (kind.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2, 0x1000)
    assert [[int(value) for value in values] for values in (dims, strides, box, steps)] == [
        [64, 32],
        [128],
        [64, 8],
        [1, 1],
    ]
    assert (swizzle.name, interleave.name) == ("CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_INTERLEAVE_NONE")
    assert "NAN" in fill.name


def test_both_encoders_know_the_same_names() -> None:
    assert set(driver_map._tables()["CUtensorMapDataType"]) == set(ELEMENT_TYPES)
    assert {name: int(value) for name, value in driver_map._tables()["CUtensorMapSwizzle"].items()} == {
        name: int(value) for name, value in SIM_SWIZZLES.items()
    }
    assert set(ELEMENT_NAMES.values()) <= set(ELEMENT_TYPES) and tuple(SIM_SWIZZLES) == SWIZZLES
    assert all(int(value) == ELEMENT_TYPES[name].code for name, value in _driver_types().items())


def _driver_types() -> dict[str, Any]:
    return driver_map._tables()["CUtensorMapDataType"]


def test_unknown_names_are_refused_with_the_list(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"dtype: 'e4m3' is no tensor map element type; use one of u8, "):
        element_name("e4m3")
    with pytest.raises(ValueError, match=r"swizzle: '96b' is unknown; use one of none, 32b, 64b, 128b"):
        driver_map.encode_tensor_map("u8", 0, (16,), (), (16,), swizzle="96b")


def test_a_refusal_prints_the_fields(encoder: Encoder) -> None:
    encoder.status = real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError) as error:
        driver_map.encode_tensor_map("u8", 0x1001, (16, 4), (24,), (16, 4))
    for part in ("0x1001", "(16, 4)", "(24,) bytes", "CUDA_ERROR_INVALID_VALUE", "as the driver says it"):
        assert part in str(error.value)
