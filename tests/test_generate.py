"""The generated library: up to date, the same bytes everywhere, importable, and what it says matches what it calls."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from gemmgen import catalog, ops
from gemmgen.backends import emit
from gemmgen.generate import differences, library_files, library_root, tree, write
from gemmgen.generate.modules import OTHERS
from gemmgen.generate.operator import Operator
from gemmgen.generate.operators import OPERATORS, kernels_of, op_of
from gemmgen.ir import Arch

TOP = Path(__file__).parents[1]
HASH = """
import hashlib
from gemmgen.generate import library_files
print(hashlib.sha256(b"".join(p.encode() + b"\\0" + data for p, data in library_files().items())).hexdigest())
"""


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return library_files()


def test_the_committed_library_is_up_to_date(files: dict[str, bytes]) -> None:
    assert differences(library_root(), files) == [], "run `gemmgen generate`"


def test_every_shipped_kernel_is_there_with_its_spec(files: dict[str, bytes]) -> None:
    for spec in catalog.all_specs().values():
        stem = f"kernels/{spec.arch}/{spec.name}"
        assert files[f"{stem}.cu"].decode() == emit(spec)
        assert type(spec).from_json(files[f"{stem}.json"]) == spec
    kernels = [path for path in files if path.startswith("kernels/")]
    assert len(kernels) == 2 * len(catalog.all_specs())


def test_bytes_do_not_depend_on_the_hash_seed(files: dict[str, bytes]) -> None:
    here = hashlib.sha256(b"".join(path.encode() + b"\0" + data for path, data in files.items())).hexdigest()
    seed = "31337" if os.environ.get("PYTHONHASHSEED") != "31337" else "0"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


CALLED = """
align ceil_div ceil_to_ue8m0 get_deterministic_algorithms get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
get_mn_major_tma_aligned_packed_ue8m0_tensor get_mn_major_tma_aligned_tensor get_num_sms get_pdl get_tma_aligned_size
pack_ue8m0_to_int per_block_cast_to_fp8 per_token_cast_to_fp4 per_token_cast_to_fp8 set_num_sms set_pdl
transform_sf_into_required_layout transpose_packed_fp4 use_deterministic_algorithms
"""


def test_what_callers_look_for_beside_the_ops() -> None:
    import gemmgen_ops

    assert [name for name in CALLED.split() if not callable(getattr(gemmgen_ops, name, None))] == []


def test_every_op_is_exported_and_calls_its_namesake(monkeypatch: pytest.MonkeyPatch) -> None:
    import gemmgen_ops

    others = ("fp8_gemm_nt_skip_head_mid", "tf32_hc_prenorm_gemm")
    assert sorted(gemmgen_ops.__all__) == sorted((*OPERATORS, *OTHERS))
    assert all(getattr(gemmgen_ops, name) is getattr(ops, name) for name in OTHERS)
    grouped = [name for name in ops.__all__ if name.startswith(("m_grouped_", "k_grouped_"))]
    assert len(grouped) == 13 and sorted(OPERATORS) == sorted((*ops.OPERATORS, *others, *grouped))
    for name in OPERATORS:
        wrapper, target = getattr(gemmgen_ops, name), getattr(ops, name)
        ours, theirs = inspect.signature(wrapper).parameters, inspect.signature(target).parameters
        assert list(ours) == list(theirs)
        assert [p.kind for p in ours.values()] == [p.kind for p in theirs.values()]
        assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
        seen: dict[str, object] = {}
        monkeypatch.setattr(
            ops,
            name,
            lambda *args, _to=target, _seen=seen, **named: _seen.update(
                inspect.signature(_to).bind(*args, **named).arguments
            ),
        )
        wrapper(**{parameter: f"<{parameter}>" for parameter in ours})
        assert seen == {parameter: f"<{parameter}>" for parameter in ours}


def test_every_parameter_is_documented() -> None:
    import gemmgen_ops

    for name in OPERATORS:
        wrapper = getattr(gemmgen_ops, name)
        text = inspect.getdoc(wrapper) or ""
        for parameter in inspect.signature(wrapper).parameters:
            assert f"    {parameter}: " in text
        source = OPERATORS[name].kernels or name
        archs = [arch for arch in Arch if kernels_of(source, arch)]
        folders = [f"kernels/{arch}/{arch}_{source}_*.cu" for arch in archs]
        for word in ("TypeError", "ValueError", "DeviceError", "CaptureError", *folders):
            assert word in text
        assert archs or "kernels are made at the first call that needs them" in text


def test_importing_the_library_touches_no_gpu_and_compiles_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, torch\n"
        "before = {name for name in sys.modules if name.startswith('cuda')}\n"
        "import gemmgen_ops\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert {name for name in sys.modules if name.startswith('cuda')} == before\n"
    )
    environment = {**os.environ, "GEMMGEN_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


def test_wrappers_are_formatted_and_fit_the_line(files: dict[str, bytes]) -> None:
    for path, data in files.items():
        if path.endswith(".py"):
            text = data.decode()
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 120, path


def test_the_installed_package_carries_every_file(files: dict[str, bytes]) -> None:
    config = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert config["package-dir"]["gemmgen_ops"] == "generated/gemmgen_ops"
    patterns = config["package-data"]["gemmgen_ops"]
    for path in files:
        assert path.endswith(".py") or any(fnmatch(path, pattern.replace("**/", "*")) for pattern in patterns), path


def test_an_undocumented_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPERATORS["fp8_gemm_nt"]
    known = {name: text for name, text in op.parameters.items() if name != "recipe"}
    monkeypatch.setitem(OPERATORS, "fp8_gemm_nt", Operator(op.name, op.summary, known))
    with pytest.raises(ValueError, match=r"op 'fp8_gemm_nt' takes .*'recipe'.*; describe exactly what it takes"):
        library_files()


def test_each_kernel_serves_one_op() -> None:
    """But for tf32 and for groups of MXFP4 and NVFP4 rows: ``gemmgen.op`` runs those specs."""
    filed = {op.kernels or op.name for op in OPERATORS.values()}
    served = [spec.name for op in filed for arch in Arch for spec in kernels_of(op, arch)]
    others = ("tf32_gemm", "m_grouped_mxfp4", "m_grouped_nvfp4")
    products = (*catalog.specs(), *catalog.grouped_specs())
    assert sorted(served) == sorted(name for name in products if not any(each in name for each in others))
    assert op_of(catalog.specs()["sm90_bf16_gemm_tn_f32_c_128x128"]) == "bf16_gemm_tn"
    assert op_of(catalog.specs()["sm100_tf32_gemm_nt_f32_128x128"]) == "gemmgen.op"


def test_write_makes_the_folder_hold_exactly_the_files(tmp_path: Path) -> None:
    (tmp_path / "old" / "deep").mkdir(parents=True)
    (tmp_path / "old" / "deep" / "stale.cu").write_text("x")
    (tmp_path / "same.py").write_text("same")
    (tmp_path / "changed.py").write_text("before")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "same.pyc").write_text("kept")
    same = (tmp_path / "same.py").stat()
    wanted = {"same.py": b"same", "changed.py": b"after", "new/file.json": b"{}"}
    lines = ["differs  changed.py", "missing  new/file.json", "stale    old/deep/stale.cu"]
    assert differences(tmp_path, wanted) == lines
    assert write(tmp_path, wanted) == lines
    assert differences(tmp_path, wanted) == []
    assert (tmp_path / "same.py").stat().st_ino == same.st_ino
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__pycache__", "changed.py", "new", "same.py"]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tree.Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        tree.write_by_rename(path, b"new")
    assert [item.name for item in tmp_path.iterdir()] == ["kernel.cu"] and path.read_text() == "old"
