"""Tables and files: ruled where a person looks, plain when piped or narrow, never cut, never half written."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from gemmgen.commands.output import deliver, plain_table, print_table, progress

COLUMNS, ROWS = ["kernel", "seconds"], [["sm90_fp8_gemm_nt_bf16_128x128", 0.5], ["first", 12]]
PLAIN = (
    "kernel                         seconds\nsm90_fp8_gemm_nt_bf16_128x128  0.5\nfirst                          12\n"
)


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(COLUMNS, ROWS)
    return screen.getvalue()


def test_a_pipe_gets_plain_aligned_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out == PLAIN == plain_table(COLUMNS, [[str(cell) for cell in row] for row in ROWS])


def test_a_wide_terminal_gets_a_ruled_table(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed_on_a_terminal(monkeypatch, 100)
    assert "━" in text and "sm90_fp8_gemm_nt_bf16_128x128" in text


def test_a_narrow_terminal_gets_plain_lines_with_whole_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed_on_a_terminal(monkeypatch, 30) == PLAIN


def test_progress_is_silent_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress([1, 2, 3], "working")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


def test_progress_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(progress([1, 2, 3], "working")) == [1, 2, 3]
    assert "working" in screen.getvalue()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    deliver("new", path)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o600 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["out.txt"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "out.txt", tmp_path / "link"
    link.symlink_to(target)
    for text in ("new", "newer"):  # the first time it leads nowhere
        deliver(text, link)
        assert link.is_symlink() and target.read_text() == text
    assert [item.name for item in target.parent.iterdir()] == ["out.txt"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """By itself and behind a link, and it is a pipe still."""
    pipe, link, read = tmp_path / "pipe", tmp_path / "link", []
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
        reader.start()
        deliver("new", path)
        reader.join(10)
        assert read.pop() == "new" and pipe.is_fifo() and link.is_symlink()


def test_a_link_to_standard_output_adds_to_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As /dev/stdout is where standard output is a file: nothing that was printed before is lost."""
    link = tmp_path / "link"
    link.symlink_to(f"/proc/{os.getpid()}/fd/1")
    sys.stdout.write("before\n")
    deliver("new\n", link)
    assert capfd.readouterr().out == "before\nnew\n" and link.is_symlink()


def test_a_dash_is_standard_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deliver("new", Path("-"))
    assert capfdbinary.readouterr().out == b"new" and not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    gone, long = tmp_path / "gone" / "x.md", tmp_path / ("x" * 300)
    for path, option, why in (
        (tmp_path, "-o", "is a folder; name a file in it"),
        (gone, "--table", f"cannot be written, as there is no folder {gone.parent}; make it first"),
        (long, "-o", "cannot be written: File name too long; name another file"),
    ):
        with pytest.raises(OSError) as refused:
            deliver("new", path, option)
        assert str(refused.value) == f"{option}: {str(path)!r} {why}"
