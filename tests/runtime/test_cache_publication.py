"""P23: entries of the disk cache are published by one rename, and whoever comes second takes it as it is."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from gemmgen.runtime.cache import DiskCache, content_key, read_entry

KEY = content_key("a key")
ENTRY = {"kernel.ptx": b"text", "facts.json": b"{}"}


def test_an_entry_appears_whole_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers without the lock see all of an entry or none, so nothing is ever written at its place."""
    shared, renamed = DiskCache(tmp_path / "cache"), list[tuple[Path, Path]]()
    final, rename = shared.path_of(KEY), Path.rename

    def recorded(work: Path, target: Path) -> Path:
        assert not final.exists() and read_entry(work) == ENTRY
        renamed.append((work, target))
        return rename(work, target)

    monkeypatch.setattr(Path, "rename", recorded)
    assert shared.fetch(KEY, lambda: ENTRY) == ENTRY == read_entry(final)
    assert [target for _, target in renamed] == [final] and renamed[0][0].parent == shared.directory / "building"


def test_losing_the_race_to_publish_is_silent(tmp_path: Path) -> None:
    """Without the lock, another process may publish an entry while this one builds it."""
    directory = tmp_path / "cache"

    def overtaken() -> dict[str, bytes]:
        DiskCache(directory)._publish(KEY, ENTRY, sweep=False)
        return dict(ENTRY)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DiskCache(directory).fetch(KEY, overtaken) == ENTRY
    assert DiskCache(directory).fetch(KEY, lambda: pytest.fail("built again")) == ENTRY
    assert not list((directory / "building").iterdir())
