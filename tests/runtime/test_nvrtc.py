"""P25 and P27: compiling with NVRTC alone, and what a failed compile or a missing library says."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemmgen.runtime import nvrtc
from gemmgen.runtime.errors import CompileError
from gemmgen.runtime.headers import package_headers
from gemmgen.runtime.resources import parse_resources

USES_HEADER = '#include <ptx/fence.cuh>\nextern "C" __global__ void k(int* p) { *p = twice(21); }\n'
HEADER = 'inline int twice(int x) { asm volatile("membar.gl;" ::: "memory"); return 2 * x; }\n'


def test_ptx_names_files_without_the_current_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        texts.append(nvrtc.compile_ptx(USES_HEADER, "sm90", "k.cu", (("ptx/fence.cuh", HEADER),)).text)
    assert texts[0] == texts[1]
    assert '.file\t1 "k.cu"' in texts[0] and '.file\t2 "ptx/fence.cuh"' in texts[0]
    assert ".loc\t2 1" in texts[0]


def test_a_header_in_the_current_directory_is_not_picked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ptx").mkdir()
    (tmp_path / "ptx" / "fence.cuh").write_text(HEADER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match="could not open source file"):
        nvrtc.compile_ptx(USES_HEADER, "sm90", "k.cu", ())


def test_package_headers_are_named_as_they_are_included() -> None:
    assert all(name.startswith(("gemmgen/", "ptx/")) and text for name, text in package_headers())


def test_cubin_reports_resources(vector_add: str) -> None:
    compiled = nvrtc.compile_cubin(vector_add, "sm90", "add.cu")
    row = compiled.resources["vector_add"]
    assert compiled.code[:4] == b"\x7fELF" and row.cubin_bytes == len(compiled.code)
    assert row.registers >= 8 and row.spill_store_bytes == row.spill_load_bytes == row.stack_bytes == 0
    assert compiled.seconds > 0 and compiled.nvrtc_version == ".".join(map(str, nvrtc.nvrtc_version()))


def test_spills_and_shared_memory_are_read_from_the_report() -> None:
    source = """
    extern "C" __global__ void __launch_bounds__(1024) k(float* p) {
      __shared__ float tile[256];
      float x[96];
      for (int i = 0; i < 96; ++i) x[i] = p[i * 1024 + threadIdx.x];
      tile[threadIdx.x % 256] = x[5];
      __syncthreads();
      for (int j = 0; j < 96; ++j) for (int i = 0; i < 96; ++i) x[i] = x[i] * x[(i * 7 + 5) % 96] + tile[i];
      for (int i = 0; i < 96; ++i) p[i * 1024 + threadIdx.x] = x[i];
    }"""
    row = nvrtc.compile_cubin(source, "sm90", "k.cu").resources["k"]
    assert row.static_shared_bytes == 1024 and row.registers == 64
    assert row.spill_store_bytes > 0 and row.spill_load_bytes > 0 and row.stack_bytes > 0


def test_a_report_of_two_kernels_gives_two_rows() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 24 registers, used 1 barriers, 16 bytes cumulative stack size, 64 bytes smem\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n"
    )
    rows = parse_resources(log, 100)
    assert list(rows) == ["a", "b"]
    assert rows["a"].to_dict() == {
        "registers": 24,
        "spill_store_bytes": 8,
        "spill_load_bytes": 12,
        "stack_bytes": 16,
        "static_shared_bytes": 64,
        "cubin_bytes": 100,
    }
    assert (rows["b"].registers, rows["b"].static_shared_bytes) == (8, 0)


def test_a_failed_compile_shows_the_log_and_the_numbered_lines(vector_add: str) -> None:
    with pytest.raises(CompileError) as error:
        nvrtc.compile_cubin(vector_add.replace("p.a[i]", "p.missing[i]"), "sm90", "add.cu")
    message = str(error.value)
    assert "could not compile add.cu for sm_90a" in message and 'has no member "missing"' in error.value.log
    assert ">   10 |   if (i < p.n) p.out[i] = p.missing[i] + p.b[i];" in message
    assert "     9 |   unsigned i" in message


def test_an_error_inside_a_header_shows_the_header() -> None:
    with pytest.raises(CompileError, match=r">    1 \| inline int twice\(int x\) \{ return y; \}"):
        nvrtc.compile_ptx(USES_HEADER, "sm90", "k.cu", (("ptx/fence.cuh", "inline int twice(int x) { return y; }\n"),))


def test_an_assembler_error_shows_the_ptx() -> None:
    source = 'extern "C" __global__ void k() { asm volatile("membar.nowhere;"); }'
    with pytest.raises(CompileError, match=r"PTX around line \d+:(.|\n)*>.*membar\.nowhere;"):
        nvrtc.compile_cubin(source, "sm90", "k.cu")


def test_a_compile_error_can_cross_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(CompileError("message", "log")))
    assert (str(error), error.log) == ("message", "log")


def test_non_ascii_text_compiles() -> None:
    source = '// spec: größe\nextern "C" __global__ void k(int* p) { *p = 1; }\n'
    assert ".entry k" in nvrtc.compile_ptx(source, "sm90", "größe.cu").text


def test_a_package_in_an_awkward_directory_compiles_its_headers(tmp_path: Path) -> None:
    place = tmp_path / 'it\'s a "größe" of $HOME -I; dir'
    shutil.copytree(Path(nvrtc.__file__).parents[1], place / "gemmgen", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [place, *place.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    script = """
import gemmgen.runtime.nvrtc as nvrtc
from gemmgen.runtime.headers import package_headers
assert "größe" in nvrtc.__file__
first = package_headers()[0][0]
print(nvrtc.compile_ptx(f'#include <{first}>\\nextern "C" __global__ void k(int* p) { *p = 1; }', "sm90", "k.cu").text)
""".replace("{ *p = 1; }", "{{ *p = 1; }}")
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    for folder in [place, *place.rglob("*")]:
        if folder.is_dir():
            folder.chmod(0o755)
    assert ".entry k" in done.stdout, done.stderr


def _without_nvidia_wheels(folder: Path) -> Path:
    """The installed packages by links, all but the wheels that carry NVIDIA's libraries."""
    for item in Path(pytest.__file__).parent.parent.iterdir():
        if item.name != "nvidia" and not item.name.startswith(("nvidia_", "__editable__")):
            (folder / item.name).symlink_to(item)
    return folder


def test_without_nvrtc_everything_but_compiling_works_and_the_message_says_what_to_install(tmp_path: Path) -> None:
    script = """
import gemmgen, gemmgen.runtime.compiler, gemmgen.runtime.targets
from gemmgen.runtime.errors import NvrtcNotFound
try:
    gemmgen.runtime.compiler.cached_ptx('extern "C" __global__ void k() {}', "sm90", "k.cu")
except NvrtcNotFound as error:
    print(error)
"""
    repository = Path(__file__).parents[2]
    environment = {
        "PATH": "",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(repository), str(_without_nvidia_wheels(tmp_path))]),
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    if "libnvrtc" not in done.stdout:  # a machine-wide NVRTC would be found instead, and must then have compiled
        assert done.returncode == 0, done.stderr
        return
    assert "pip install nvidia-cuda-nvrtc" in done.stdout and "CUDA_HOME" in done.stdout, done.stderr


def test_builtins_are_open_before_threads_compile() -> None:
    """Without, every other process whose first two compilations ran side by side could not find them."""
    code = (
        "from pathlib import Path; from gemmgen.runtime import nvrtc; nvrtc.nvrtc_version(); "
        "print('libnvrtc-builtins' in Path('/proc/self/maps').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
