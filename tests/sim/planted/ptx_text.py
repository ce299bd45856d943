"""The body of an entry as statements with their place in the text, and edits of single statements.

It finds statements by opcode and operands, never by line number, so that another compiler release moves nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_NO_STATEMENT = re.compile(r"^[ \t]*(?:\.(?:loc|pragma|reg|file)\b|//|\$\w+:).*$", re.MULTILINE)
_PIECE = re.compile(r"[\s{}]*(?:(?P<guard>@!?%?\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """One instruction: where it stands in the text, and its parts."""

    start: int
    end: int
    opcode: str
    operands: tuple[str, ...]
    guard: str = ""

    @property
    def target(self) -> str:
        """The register it writes."""
        return self.operands[0]


@lru_cache(maxsize=256)
def statements(text: str) -> tuple[Statement, ...]:
    """Every instruction of the entry, in the order of the text, those inside asm scopes included."""
    return tuple(_statements(text))


def _statements(text: str) -> Iterator[Statement]:
    start = text.index("{", text.index(".visible .entry"))
    end = text.find("\n\t.section", start)
    body = _NO_STATEMENT.sub(lambda match: " " * len(match[0]), text[start : end if end > 0 else len(text)])
    place = 0
    for piece in body.split(";"):
        match = _PIECE.match(piece)
        if match:
            operands = tuple(_split(match["operands"]))
            first = match.start("guard") if match["guard"] else match.start("opcode")
            yield Statement(
                start + place + first, start + place + len(piece) + 1, match["opcode"], operands, match["guard"] or ""
            )
        place += len(piece) + 1


def _split(operands: str) -> Iterator[str]:
    """Operands at top level: commas inside brackets and braces separate nothing."""
    depth, piece = 0, ""
    for character in operands:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            yield piece.strip()
            piece = ""
        else:
            piece += character
    if piece.strip():
        yield piece.strip()


Where = Callable[[Statement], bool]


def find(text: str, opcode: str, where: Where | None = None) -> list[Statement]:
    """Statements whose opcode starts so and that meet the condition; at least one, or the edit is out of date."""
    found = [each for each in statements(text) if each.opcode.startswith(opcode) and (where is None or where(each))]
    if not found:
        raise LookupError(f"the kernel has no statement {opcode!r} that the edit looks for")
    return found


def replace(text: str, statement: Statement, by: str) -> str:
    """The text with one statement exchanged; its guard goes too unless ``by`` repeats it."""
    return text[: statement.start] + by + text[statement.end :]


def replace_all(text: str, found: list[Statement], by: Callable[[Statement], str]) -> str:
    """Exchange several statements, last first so that places stay right."""
    for statement in sorted(found, key=lambda each: -each.start):
        text = replace(text, statement, by(statement))
    return text


def delete(text: str, found: list[Statement]) -> str:
    """The text without these statements."""
    return replace_all(text, found, lambda statement: "")


def rewrite(statement: Statement, **operands: str) -> str:
    """The statement with operands exchanged by position: ``rewrite(s, _1="5")``."""
    parts = list(statement.operands)
    for position, operand in operands.items():
        parts[int(position.removeprefix("_"))] = operand
    guard = f"{statement.guard} " if statement.guard else ""
    return f"{guard}{statement.opcode} {', '.join(parts)};"


def definition(text: str, register: str, before: int) -> Statement:
    """The last statement above a place that writes the register."""
    for statement in reversed([each for each in statements(text) if each.start < before]):
        if statement.operands and statement.target == register:
            return statement
    raise LookupError(f"nothing above writes {register}")


def register_of(operand: str) -> str:
    """The register inside ``[%r5]`` or ``[%r5+8]``."""
    match = re.search(r"%\w+", operand)
    if match is None:
        raise LookupError(f"{operand!r} names no register")
    return match[0]


def address_constant(text: str, statement: Statement, operand: int) -> int:
    """The constant that was added last to the address in an operand, by which rings and barriers are told apart."""
    added = definition(text, register_of(statement.operands[operand]), statement.start)
    if not added.opcode.startswith("add.s32"):
        raise LookupError(f"the address of `{statement.opcode}` is not a sum with a constant")
    return int(added.operands[2])


def next_label(text: str, place: int) -> int:
    """The place right behind the next label."""
    match = re.compile(r"^\$L__BB\w+:", re.MULTILINE).search(text, place)
    if match is None:
        raise LookupError("no label follows")
    return match.end()


def insert(text: str, place: int, addition: str) -> str:
    """Text put in at a place."""
    return f"{text[:place]}\n\t{addition}\n{text[place:]}"
