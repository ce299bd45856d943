"""Finds the parts of an sm100 kernel's PTX by the plan: waits, commits and arrivals of a ring's barriers, products."""

from __future__ import annotations

from gemmgen.ir import Plan, UmmaPlan

from .ptx_text import Statement, definition, find, insert, register_of, replace_all, rewrite

WAIT, COMMIT, ARRIVE, MAP, EXPECT = (
    "mbarrier.try_wait",
    "tcgen05.commit",
    "mbarrier.arrive.shared::cta",
    "mapa",
    "mbarrier.arrive.expect_tx",
)
_ADDRESS = {WAIT: 1, COMMIT: 0, ARRIVE: 1, MAP: 1, EXPECT: 1}
"""Which operand of each holds the barrier's address."""


def umma(plan: Plan) -> UmmaPlan:
    """The plan of the product."""
    assert isinstance(plan.mma, UmmaPlan)
    return plan.mma


def constant(text: str, statement: Statement, operand: int) -> int | None:
    """The constant added last to an address, if it is such a sum."""
    try:
        added = definition(text, register_of(statement.operands[operand]), statement.start)
    except LookupError:
        return None
    if not added.opcode.startswith("add.s32") or not added.operands[2].isdigit():
        return None
    return int(added.operands[2])


def at(text: str, plan: Plan, opcode: str, ring: str, side: str) -> list[Statement]:
    """Statements of one kind that address a ring's ``full``, ``ready`` or ``empty`` barriers, in the text's order."""
    first: int = getattr(plan.ring(ring), side)
    return find(text, opcode, lambda each: constant(text, each, _ADDRESS[opcode]) == first)


def address_of(text: str, statement: Statement, opcode: str) -> Statement:
    """The sum that makes the barrier's address."""
    return definition(text, register_of(statement.operands[_ADDRESS[opcode]]), statement.start)


def products(text: str) -> list[Statement]:
    """The tcgen05.mma of a K block: d, a, b, instruction descriptor, ..."""
    return find(text, "tcgen05.mma")


def made_of(text: str, statement: Statement, operand: int, opcode: str) -> Statement:
    """The nearest definition with that opcode on the way back from an operand, through copies and conversions."""
    register = register_of(statement.operands[operand])
    made = definition(text, register, statement.start)
    for _ in range(8):
        if made.opcode.startswith(opcode):
            return made
        made = definition(text, next(each for each in made.operands[1:] if each.startswith("%")), made.start)
    raise LookupError(f"no {opcode} makes {register}")


def first_of(text: str, statement: Statement, operand: int) -> Statement:
    """Where the descriptor of a ring's first slot is put together, to which an operand's adds its own slot."""
    made = definition(text, register_of(statement.operands[operand]), statement.start)
    for _ in range(2):
        if made.opcode == "or.b64":
            return made
        sources = [definition(text, each, made.start) for each in made.operands[1:] if each.startswith("%")]
        made = next((each for each in sources if each.opcode == "or.b64"), sources[0])
    raise LookupError(f"no descriptor of a first slot behind `{statement.opcode}`")


def moved_on(text: str, descriptor: Statement, by: int) -> str:
    """The address in a first slot's descriptor so many bytes further on."""
    moved = f"add.s64 {descriptor.target}, {descriptor.target}, {by // 16};"
    return insert(text, descriptor.end, moved)


def with_constants(text: str, found: list[Statement], change: int) -> str:
    """Bits of the last operand, a constant, inverted in each statement."""

    def changed(each: Statement) -> str:
        last = len(each.operands) - 1
        return rewrite(each, **{f"_{last}": str(int(each.operands[last]) ^ change)})

    return replace_all(text, list(dict.fromkeys(found)), changed)


def nearest_before(text: str, opcode: str, place: int) -> Statement:
    """The last such statement above a place."""
    return [each for each in find(text, opcode) if each.start < place][-1]
