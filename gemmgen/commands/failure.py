"""An exception as the sentence that a command prints before it exits with status 1."""

from __future__ import annotations


def sentence(error: BaseException) -> str:
    """The message on one line; a compiler log or a table after the first line follows indented."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(_detail(row) for row in error.errors(include_url=False))
    text = str(error).strip() or type(error).__name__
    if isinstance(error, KeyError | AttributeError | TypeError | AssertionError | IndexError):
        text = f"internal error, {type(error).__name__}: {text} (set GEMMGEN_TRACEBACK=1 to see where)"
    return text.replace("\n", "\n  ")


def _detail(row: object) -> str:
    assert isinstance(row, dict)
    place = ".".join(str(part) for part in row["loc"])
    message = str(row["msg"]).removeprefix("Value error, ")
    if place and row["type"] not in ("missing", "value_error"):  # of a whole spec, or said by a rule of ours already
        return f"{place}: {message}, not {row['input']!r}"
    return f"{place}: {message}" if place else message
