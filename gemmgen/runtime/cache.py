"""A disk cache of compiled kernels that many processes may share, with an in-process map on top.

It stores named blobs under a content key and knows nothing of CUDA; whatever happens to the
directory, the caller gets its entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from gemmgen.runtime.errors import CacheDamaged

DIRECTORY_VARIABLE = "GEMMGEN_CACHE_DIR"
MANIFEST = "manifest.json"
LOCK_TIMEOUT_SECONDS = (
    300.0  # a compile takes about a second; past this the holder is stuck and we build without the lock
)

Entry = Mapping[str, bytes]  # file name -> contents
Build = Callable[[], Entry]


def content_key(*parts: str) -> str:
    """sha256 over the parts and their lengths, so that no two different lists of parts share a key."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


class MemoryCache:
    """Entries of this process: `fetch` returns the entry of a key, made by one thread while the others wait."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.reset_locks()
        _all_caches.add(self)

    def reset_locks(self) -> None:
        """Forget in-process locks: after a fork, a thread that does not exist in the child may hold one."""
        self._guard = threading.Lock()
        self._building: dict[str, threading.Lock] = {}

    def fetch(self, key: str, build: Build) -> Entry:
        """The entry of `key`; `build` runs once per key over all threads and processes that share the cache."""
        if (entry := self._entries.get(key)) is not None:
            return entry
        with self._lock_in_process(key):
            if (entry := self._entries.get(key)) is None:
                entry = self._entries[key] = self._make(key, build)
        return entry

    def forget(self) -> None:
        """Drop the in-process map, as a new process would start."""
        self._entries.clear()

    def _make(self, key: str, build: Build) -> Entry:
        return dict(build())

    def _lock_in_process(self, key: str) -> threading.Lock:
        with self._guard:
            return self._building.setdefault(key, threading.Lock())


_all_caches: weakref.WeakSet[MemoryCache] = weakref.WeakSet()


class DiskCache(MemoryCache):
    """Entries under one directory, shared by all processes that name it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory.absolute()
        self._warned = False

    def path_of(self, key: str) -> Path:
        return self.directory / "entries" / key[:2] / key

    def _make(self, key: str, build: Build) -> Entry:
        return self._load(key) or self._build_under_lock(key, build)

    def _load(self, key: str, locked: bool = False) -> Entry | None:
        """The stored entry, or None when there is none or when it is damaged; under the key's lock that is removed."""
        try:
            return read_entry(self.path_of(key))
        except CacheDamaged:
            if locked:
                self._discard(key)
            return None
        except OSError:
            return None  # absent, vanished while being read, or not readable by this user

    def _build_under_lock(self, key: str, build: Build) -> Entry:
        with self._lock_between_processes(key) as locked:
            if locked and (entry := self._load(key, locked=True)) is not None:
                return entry
            entry = dict(build())
            self._publish(key, entry, sweep=locked)
            return entry

    @contextlib.contextmanager
    def _lock_between_processes(self, key: str) -> Iterator[bool]:
        """A lock that dies with its holder; False when none can be had, which costs no more than a second build."""
        lock = self._acquire(key)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def _acquire(self, key: str) -> FileLock | None:
        try:
            locks = self.directory / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            lock = FileLock(locks / f"{key}.lock", timeout=LOCK_TIMEOUT_SECONDS)
            lock.acquire()
        except Timeout:
            return None
        except (OSError, NotImplementedError) as error:
            self._warn(error)
            return None
        return lock

    def _publish(self, key: str, entry: Entry, sweep: bool) -> None:
        """Write beside the final place and rename: readers see a whole entry or none."""
        try:
            building = self.directory / "building"
            building.mkdir(parents=True, exist_ok=True)
            if sweep:  # we hold the key's lock, so whatever lies here was left by a builder that died
                for leftover in building.glob(f"{key}.*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            work = building / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
            work.mkdir()
            try:
                write_entry(work, entry)
                self._move_into_place(work, self.path_of(key))
            finally:
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            self._warn(error)

    def _move_into_place(self, work: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            work.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            return  # somebody without the lock published the same content first
        _sync_directory(final.parent)

    def _discard(self, key: str) -> None:
        """Take a damaged entry away in one step, so that nobody reads half of it."""
        try:
            building = self.directory / "building"
            building.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix="damaged.", dir=building))
            with contextlib.suppress(FileNotFoundError):
                self.path_of(key).rename(aside / key)
            shutil.rmtree(aside, ignore_errors=True)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _warn_unwritable(f"{self.directory} ({error})")


def _warn_unwritable(where: str) -> None:
    warnings.warn(
        f"gemmgen cannot write its kernel cache in {where}; kernels are kept in memory and the next process compiles "
        f"them again. Set {DIRECTORY_VARIABLE} to a directory that can be written.",
        RuntimeWarning,
        stacklevel=2,
    )


def write_entry(folder: Path, entry: Entry) -> None:
    """The blobs and a manifest with the checksum of each, all on the disk before this returns."""
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in entry.items()}
    for name, data in entry.items():
        _write_synced(folder / name, data)
    _write_synced(folder / MANIFEST, json.dumps(checksums, sort_keys=True).encode())
    _sync_directory(folder)


def read_entry(folder: Path) -> Entry:
    """The blobs of one entry; CacheDamaged when any differs from the manifest, OSError when there is no entry."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        entry = {name: (folder / name).read_bytes() for name in manifest}
        intact = all(hashlib.sha256(data).hexdigest() == manifest[name] for name, data in entry.items())
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise CacheDamaged(f"{folder}: {error}") from error
    if not intact:
        raise CacheDamaged(f"{folder}: a file does not match its checksum")
    return entry


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse to sync a directory; the checksums catch what that can lose
    finally:
        os.close(descriptor)


def default_directory() -> Path | None:
    """GEMMGEN_CACHE_DIR or the user's cache directory, fixed before any later chdir; None without a home."""
    if asked := os.environ.get(DIRECTORY_VARIABLE):
        return Path(asked).absolute()
    from platformdirs import user_cache_path

    try:
        path = user_cache_path("gemmgen")
    except RuntimeError:  # neither HOME nor an entry in the user database; older releases answer "~/.cache" instead
        return None
    return path if path.is_absolute() else None


_default: MemoryCache | None = None
_default_guard = threading.Lock()


def default_cache() -> MemoryCache:
    """The cache of this process, opened at first use."""
    global _default
    with _default_guard:
        if _default is None:
            _default = _open_default()
        return _default


def _open_default() -> MemoryCache:
    directory = default_directory()
    if directory is None:
        _warn_unwritable("a home directory, for there is none")
        return MemoryCache()
    return DiskCache(directory)


def _after_fork_in_child() -> None:
    global _default_guard
    _default_guard = threading.Lock()
    for cache in list(_all_caches):
        cache.reset_locks()


os.register_at_fork(after_in_child=_after_fork_in_child)
