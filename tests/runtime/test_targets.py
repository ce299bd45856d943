"""Choosing where to run, and P28: importing touches neither CUDA nor torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from gemmgen.runtime import driver, gpu_target, targets
from gemmgen.runtime.errors import DeviceError, DriverError, UnsupportedArchitecture
from gemmgen.runtime.simulation import SIMULATE_VARIABLE, current_simulation, simulate


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIMULATE_VARIABLE, raising=False)


def test_cpu_tensors_without_asking_are_refused_with_both_ways_to_ask() -> None:
    with pytest.raises(DeviceError) as error:
        targets.current_target(torch.device("cpu"))
    assert 'gemmgen.simulate("sm90")' in str(error.value) and "GEMMGEN_SIMULATE=sm90" in str(error.value)


def test_other_devices_are_refused_by_name() -> None:
    with pytest.raises(DeviceError, match="device: meta cannot run"):
        targets.current_target(torch.device("meta"))


def test_the_gpu_is_the_tensors_and_not_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """P22; only a device without an index is torch's current one."""
    monkeypatch.setattr(gpu_target, "gpu_target", lambda index: index)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    asked = [targets.current_target(torch.device(name)) for name in ("cuda:1", "cuda:0", "cuda")]
    assert asked == [1, 0, 0]


def test_the_innermost_block_wins_and_is_undone() -> None:
    with simulate("sm90", schedule="random", seed=3, sms=2) as outer:
        assert (outer.arch.family, outer.schedule, outer.seed, outer.sms) == ("sm90", "random", 3, 2)
        with pytest.raises(KeyError), simulate("sm100"):
            assert current_simulation() is not outer
            raise KeyError
        assert current_simulation() is outer
    assert current_simulation() is None


def test_the_environment_asks_too_and_a_block_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATE_VARIABLE, "sm120")
    found = current_simulation()
    assert found is not None and found.arch.code == "sm_120a"
    with simulate("sm90"):
        assert (current_simulation() or found).arch.code == "sm_90a"


def test_a_block_holds_for_its_own_thread() -> None:
    seen: list[object] = []
    with simulate("sm90"):
        thread = threading.Thread(target=lambda: seen.append(current_simulation()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_wrong_choices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedArchitecture, match="'sm80'"), simulate("sm80"):
        pass
    with pytest.raises(ValueError, match=r"schedule: 'fast' is unknown; use one of early, late"), simulate(90, "fast"):
        pass
    with pytest.raises(ValueError, match="sms: 0"), simulate(90, sms=0):
        pass
    monkeypatch.setenv(SIMULATE_VARIABLE, "yes")
    with pytest.raises(UnsupportedArchitecture, match="'yes'"):
        current_simulation()


def test_without_a_driver_the_message_names_it_and_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as real

    def missing(_: int) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(real, "cuInit", missing)
    driver.bindings.cache_clear()
    with pytest.raises(DriverError, match=r"(?s)no NVIDIA driver.*gemmgen\.simulate.*libcuda\.so\.1"):
        driver.bindings()
    driver.bindings.cache_clear()


def _run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_neither_torch_nor_a_cuda_library() -> None:
    _run(
        "import sys\n"
        "import gemmgen.runtime, gemmgen.runtime.compiler, gemmgen.runtime.simulation, gemmgen.runtime.targets\n"
        "import gemmgen.runtime.driver, gemmgen.runtime.driver_map\n"
        "assert 'torch' not in sys.modules and 'cuda.bindings' not in sys.modules\n"
        "from pathlib import Path\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "assert 'libnvrtc' not in maps and 'libcuda' not in maps\n"
    )


def test_importing_the_targets_creates_no_context() -> None:
    """Nor loads NVRTC, which builds of torch for CUDA load themselves."""
    _run(
        "import torch\n"
        "from pathlib import Path\n"
        "def loaded(): return 'libnvrtc.so' in Path('/proc/self/maps').read_text().replace('libnvrtc.alt', '')\n"
        "by_torch = loaded()\n"
        "import gemmgen.runtime.gpu_target\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert loaded() == by_torch\n"
    )
