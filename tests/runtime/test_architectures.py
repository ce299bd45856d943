"""P26: architecture names, and NVRTC versions that lack some of them."""

from __future__ import annotations

from enum import StrEnum

import pytest

from gemmgen.runtime import nvrtc
from gemmgen.runtime.architectures import ARCHITECTURES, check_nvrtc, resolve
from gemmgen.runtime.errors import UnsupportedArchitecture


class Arch(StrEnum):
    SM100 = "sm100"


@pytest.mark.parametrize(
    ("spelling", "family", "code"),
    [
        ("sm90", "sm90", "sm_90a"),
        ("90", "sm90", "sm_90a"),
        ("9.0", "sm90", "sm_90a"),
        (90, "sm90", "sm_90a"),
        ((9, 0), "sm90", "sm_90a"),
        ("SM_90a", "sm90", "sm_90a"),
        ("compute_90a", "sm90", "sm_90a"),
        ("100", "sm100", "sm_100a"),
        (Arch.SM100, "sm100", "sm_100a"),
        ("sm_100f", "sm100", "sm_100f"),
        ("103", "sm100", "sm_103a"),
        ((10, 3), "sm100", "sm_103a"),
        ("sm120", "sm120", "sm_120a"),
        ("120f", "sm120", "sm_120f"),
        ((12, 1), "sm120", "sm_121a"),
        (ARCHITECTURES["90a"], "sm90", "sm_90a"),
    ],
)
def test_spellings(spelling: object, family: str, code: str) -> None:
    arch = resolve(spelling)
    assert (arch.family, arch.code, arch.virtual) == (family, code, code.replace("sm_", "compute_"))


@pytest.mark.parametrize(
    "spelling", ["89", "", "sm_89", "90f", "hopper", "9", "sm90b", (9,), (8, 9), None, True, 9.0, "900"]
)
def test_unknown_names_are_refused_with_the_value_and_the_list(spelling: object) -> None:
    with pytest.raises(UnsupportedArchitecture) as error:
        resolve(spelling)
    assert repr(spelling) in str(error.value)
    assert "sm90, sm100, sm120" in str(error.value) and "sm_100f" in str(error.value)


def test_an_old_nvrtc_is_refused_with_both_versions() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"sm_100f needs NVRTC 12\.9 or newer, this is NVRTC 12\.6"):
        check_nvrtc(resolve("100f"), (12, 6), (90,))


def test_an_nvrtc_that_does_not_list_the_architecture_is_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"sm_90a is not offered by this NVRTC 14\.0 .* sm_100, sm_120"):
        check_nvrtc(resolve("90"), (14, 0), (100, 120))


def test_the_refusal_comes_before_any_compilation(monkeypatch: pytest.MonkeyPatch, vector_add: str) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (12, 4))
    monkeypatch.setattr(nvrtc, "_create", lambda *_: pytest.fail("a program was created"))
    with pytest.raises(UnsupportedArchitecture, match=r"12\.8.*12\.4"):
        nvrtc.compile_ptx(vector_add, "sm100", "add.cu")


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=lambda arch: arch.code)
def test_the_installed_nvrtc_compiles_for_every_row(arch: object, vector_add: str) -> None:
    code = resolve(arch).code
    assert f".target {code}" in nvrtc.compile_ptx(vector_add, arch, "add.cu").text
    assert f"for '{code}'" in nvrtc.compile_cubin(vector_add, arch, "add.cu").log
