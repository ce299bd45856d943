"""Tables and files: ruled where a person looks, plain when piped or narrow, never cut, never half written."""

from __future__ import annotations

import io
import sys
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


def test_a_missing_folder_is_said_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        deliver("new", tmp_path / "missing" / "out.txt")
