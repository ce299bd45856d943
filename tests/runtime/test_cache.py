"""P23, P24, P28: the disk cache under many processes, unwritable and awkward directories, damage, kills, forks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from gemmgen.runtime import cache, compiler
from gemmgen.runtime.cache import DiskCache, MemoryCache, content_key
from gemmgen.runtime.errors import CompileError

KEY = content_key("a key")
ENTRY = {"kernel.ptx": b"text", "facts.json": b"{}"}

fork = multiprocessing.get_context("fork")
spawn = multiprocessing.get_context("spawn")


class Counting:
    """A build that leaves a byte in a file each time it runs, whichever process runs it."""

    def __init__(self, counter: Path, seconds: float = 0.0) -> None:
        self.counter, self.seconds = counter, seconds

    def __call__(self) -> dict[str, bytes]:
        with self.counter.open("ab") as file:
            file.write(b".")
        time.sleep(self.seconds)
        return dict(ENTRY)

    @property
    def count(self) -> int:
        return self.counter.stat().st_size if self.counter.exists() else 0


@pytest.fixture
def build(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "counter")


def unlocked_build() -> dict[str, bytes]:
    return dict(ENTRY)


def run_in_child(action: Callable[[], object]) -> int:
    """Fork, run `action`, and give its exit status: 0 when it returned something true."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if action() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_one_build_serves_threads_and_later_processes(tmp_path: Path, build: Counting) -> None:
    shared = DiskCache(tmp_path / "cache")
    threads = [threading.Thread(target=shared.fetch, args=(KEY, build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.count == 1
    assert DiskCache(tmp_path / "cache").fetch(KEY, build) == ENTRY
    assert build.count == 1


def test_the_key_separates_parts() -> None:
    assert content_key("ab", "c") != content_key("a", "bc") != content_key("abc")


def _fetch_at_barrier(directory: Path, barrier: Barrier, counter: Path) -> None:
    barrier.wait()
    entry = DiskCache(directory).fetch(KEY, Counting(counter, seconds=0.2))
    os._exit(0 if entry == ENTRY else 1)


def test_eight_processes_on_a_cold_cache_build_once(tmp_path: Path, build: Counting) -> None:
    barrier = fork.Barrier(8)
    arguments = (tmp_path / "made by nobody yet" / "cache", barrier, build.counter)
    processes = [fork.Process(target=_fetch_at_barrier, args=arguments) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    assert build.count == 1
    assert len(list((arguments[0] / "entries").glob("*/*"))) == 1
    assert not list((arguments[0] / "building").iterdir())


def _compile_at_barrier(barrier: Barrier, counter: str, source: str) -> None:
    from gemmgen.runtime import nvrtc

    uncached = nvrtc.compile_ptx

    def counted(*arguments: object) -> nvrtc.Compiled:
        with Path(counter).open("ab") as file:
            file.write(b".")
        return uncached(*arguments)  # type: ignore[arg-type]

    nvrtc.compile_ptx = counted  # type: ignore[assignment]
    barrier.wait()
    text = compiler.cached_ptx(source, "sm90", "add.cu").text
    os._exit(0 if ".entry vector_add" in text else 1)


def test_fresh_interpreters_compile_one_kernel_once(cache_directory: Path, tmp_path: Path, vector_add: str) -> None:
    barrier = spawn.Barrier(4)
    arguments = (barrier, str(tmp_path / "counter"), vector_add)
    processes = [spawn.Process(target=_compile_at_barrier, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "counter").stat().st_size == 1


def test_cached_products_equal_fresh_ones(
    cache_directory: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiler.cached_cubin(vector_add, "sm90", "add.cu")
    monkeypatch.setattr(cache, "_default", None)
    monkeypatch.setattr(compiler.nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert compiler.cached_cubin(vector_add, "sm90", "add.cu") == first
    assert first.resources["vector_add"].registers > 0


def test_the_key_depends_on_text_headers_flags_and_compiler(vector_add: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arch = compiler.resolve("sm90")
    keys = {
        compiler.cache_key(vector_add, arch, "ptx", ()),
        compiler.cache_key(vector_add + " ", arch, "ptx", ()),
        compiler.cache_key(vector_add, arch, "ptx", (("ptx/a.cuh", ""),)),
        compiler.cache_key(vector_add, arch, "cubin", ()),
        compiler.cache_key(vector_add, compiler.resolve("sm100"), "ptx", ()),
    }
    monkeypatch.setattr(compiler.nvrtc, "nvrtc_identity", lambda: "99.0/1")
    keys.add(compiler.cache_key(vector_add, arch, "ptx", ()))
    assert len(keys) == 6


def test_a_failed_compile_stores_nothing(cache_directory: Path) -> None:
    with pytest.raises(CompileError):
        compiler.cached_ptx("this is not CUDA", "sm90", "k.cu")
    stored = [path for path in cache_directory.rglob("*") if path.is_file() and path.parent.name != "locks"]
    assert stored == []


def _truncate(folder: Path) -> None:
    (folder / "kernel.ptx").write_bytes(b"te")


def _flip(folder: Path) -> None:
    (folder / "kernel.ptx").write_bytes(b"tExt")


def _remove_payload(folder: Path) -> None:
    (folder / "kernel.ptx").unlink()


def _remove_manifest(folder: Path) -> None:
    (folder / cache.MANIFEST).unlink()


def _garble_manifest(folder: Path) -> None:
    (folder / cache.MANIFEST).write_bytes(b'["kernel.ptx"')


def _wrong_manifest(folder: Path) -> None:
    (folder / cache.MANIFEST).write_bytes(b'["kernel.ptx"]')


@pytest.mark.parametrize(
    "damage", [_truncate, _flip, _remove_payload, _remove_manifest, _garble_manifest, _wrong_manifest]
)
def test_a_damaged_entry_is_removed_and_rebuilt(
    tmp_path: Path, build: Counting, damage: Callable[[Path], None]
) -> None:
    DiskCache(tmp_path / "cache").fetch(KEY, build)
    damage(DiskCache(tmp_path / "cache").path_of(KEY))
    assert DiskCache(tmp_path / "cache").fetch(KEY, build) == ENTRY
    assert build.count == 2
    assert DiskCache(tmp_path / "cache").fetch(KEY, build) == ENTRY
    assert build.count == 2


def _hold_lock_and_wait(directory: Path, started: Event) -> None:
    def hang() -> dict[str, bytes]:
        (directory / "building" / f"{KEY}.1.left").mkdir(parents=True)
        started.set()
        time.sleep(60)
        return dict(ENTRY)

    DiskCache(directory).fetch(KEY, hang)


def test_a_killed_holder_leaves_neither_lock_nor_litter(tmp_path: Path, build: Counting) -> None:
    directory, started = tmp_path / "cache", fork.Event()
    holder = fork.Process(target=_hold_lock_and_wait, args=(directory, started))
    holder.start()
    assert started.wait(30)
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    assert DiskCache(directory).fetch(KEY, build) == ENTRY
    assert not list((directory / "building").iterdir())


def test_a_stuck_holder_only_costs_a_second_build(
    tmp_path: Path, build: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_SECONDS", 0.2)
    directory, started = tmp_path / "cache", fork.Event()
    holder = fork.Process(target=_hold_lock_and_wait, args=(directory, started))
    holder.start()
    assert started.wait(30)
    assert DiskCache(directory).fetch(KEY, build) == ENTRY
    holder.kill()
    holder.join()
    assert DiskCache(directory).fetch(KEY, build) == ENTRY and build.count == 1


def test_a_child_forked_while_a_thread_builds_does_not_hang(tmp_path: Path, build: Counting) -> None:
    shared, building, go_on = DiskCache(tmp_path / "cache"), threading.Event(), threading.Event()

    def slow() -> dict[str, bytes]:
        building.set()
        go_on.wait(60)
        return dict(ENTRY)

    thread = threading.Thread(target=shared.fetch, args=(KEY, slow))
    thread.start()
    building.wait(30)
    shared._guard.acquire()  # and a second thread is just inside the bookkeeping
    child = fork.Process(target=lambda: os._exit(0 if shared.fetch("other", build) == ENTRY else 1))
    child.start()
    waiting = fork.Process(target=lambda: os._exit(0 if shared.fetch(KEY, build) == ENTRY else 1))
    waiting.start()
    shared._guard.release()
    child.join(30)
    assert child.exitcode == 0
    go_on.set()
    thread.join(30)
    waiting.join(30)
    assert waiting.exitcode == 0
    assert build.count == 1  # the waiting child took what the parent published


def test_a_compile_in_a_child_forked_after_use_works(cache_directory: Path, vector_add: str) -> None:
    compiler.cached_ptx(vector_add, "sm90", "add.cu")
    other = vector_add.replace("p.a[i] +", "p.a[i] -")
    assert run_in_child(lambda: "sub" in compiler.cached_ptx(other, "sm90", "add.cu").text) == 0


def _fetch_recording_warnings(directory: Path, build: Counting) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unwritable = DiskCache(directory)
        assert unwritable.fetch(KEY, build) == ENTRY
        assert unwritable.fetch(KEY, build) == ENTRY
        assert unwritable.fetch("another", build) == ENTRY
    return [str(warning.message) for warning in caught]


def test_a_directory_below_a_file_is_survived_with_one_warning(tmp_path: Path, build: Counting) -> None:
    (tmp_path / "file").write_text("")
    messages = _fetch_recording_warnings(tmp_path / "file" / "cache", build)
    assert len(messages) == 1 and "GEMMGEN_CACHE_DIR" in messages[0] and str(tmp_path / "file") in messages[0]
    assert build.count == 2


def _without_privileges() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


TEMPORARY = Path(tempfile.gettempdir())


def test_a_read_only_directory_is_read_and_survived(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    DiskCache(directory).fetch("stored", unlocked_build)
    for folder in [
        path for path in (tmp_path, *tmp_path.parents) if path.is_relative_to(TEMPORARY) and path != TEMPORARY
    ]:
        folder.chmod(0o755)
    read_only = [path for path in [directory, *directory.rglob("*")] if path.is_dir()]
    for folder in read_only:
        folder.chmod(0o555)

    def in_child() -> bool:
        _without_privileges()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            user = DiskCache(directory)
            stored = user.fetch("stored", lambda: pytest.fail("a stored entry was built again"))
            silent = not caught
            fresh = user.fetch(KEY, unlocked_build)
        return stored == fresh == ENTRY and silent and len(caught) == 1

    assert run_in_child(in_child) == 0
    for folder in read_only:
        folder.chmod(0o755)


@pytest.mark.parametrize("name", ["with space", "it's", 'a"quote', "$HOME", "größe-ü", "a;b&c", "-std=c++03"])
def test_awkward_directory_names_work(
    name: str, tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(tmp_path / name))
    monkeypatch.setattr(cache, "_default", None)
    assert compiler.cached_ptx(vector_add, "sm90", "add.cu").text
    assert len(list((tmp_path / name / "entries").glob("*/*/kernel.ptx"))) == 1


def test_a_relative_directory_stays_where_it_was_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, "relative cache")
    monkeypatch.setattr(cache, "_default", None)
    opened = cache.default_cache()
    monkeypatch.chdir(tmp_path / "elsewhere")
    opened.fetch(KEY, unlocked_build)
    assert (tmp_path / "relative cache" / "entries").is_dir()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_a_home_there_is_a_warning_and_a_cache_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: Counting
) -> None:
    for variable in (cache.DIRECTORY_VARIABLE, "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does for a user that nobody knows
    monkeypatch.setattr(cache, "_default", None)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning, match="GEMMGEN_CACHE_DIR"):
        opened = cache.default_cache()
    assert type(opened) is MemoryCache
    assert opened.fetch(KEY, build) == opened.fetch(KEY, build) == ENTRY
    assert build.count == 1 and [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_a_home_that_does_not_exist_is_made_or_survived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vector_add: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv(cache.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(cache, "_default", None)
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        assert compiler.cached_ptx(vector_add, "sm90", "add.cu").text


def test_nothing_is_written_into_the_package(cache_directory: Path, vector_add: str) -> None:
    package = Path(cache.__file__).parents[1]

    def listing() -> set[Path]:
        return {path for path in package.rglob("*") if "__pycache__" not in path.parts}

    before = listing()
    compiler.cached_ptx(vector_add, "sm90", "add.cu")
    compiler.cached_cubin(vector_add, "sm90", "add.cu")
    assert listing() == before and (cache_directory / "entries").is_dir()
