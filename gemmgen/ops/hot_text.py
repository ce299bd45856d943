"""The Python text of hot calls: written out for a function's parameters and for what a call of it turned out to do.

Straight lines, because every loop, tuple and attribute of a call that takes microseconds costs a tenth of one. Knows
names and positions; values come in as arguments of ``make``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@dataclass(frozen=True)
class Parameters:
    """What a function takes: pairs of data and scales, tensors, host numbers, and options, which are all others.

    The first of the pairs and tensors finds a call by its shape, so it is never None. ``lenient`` functions take other
    keywords too, if only to refuse them.
    """

    signature: inspect.Signature
    pairs: tuple[str, ...]
    tensors: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    lenient: bool = False

    @property
    def options(self) -> list[str]:
        """Names of parameters that are neither tensors nor numbers."""
        known = {*self.pairs, *self.tensors, *self.numbers}
        return [name for name in self.signature.parameters if name not in known]

    @property
    def operands(self) -> list[str]:
        """What the tensors are called further in, pairs first."""
        return [operand for name in self.pairs for operand in (name, f"sf{name}")] + list(self.tensors)


def entry_text(name: str, parameters: Parameters) -> str:
    """``make`` of a function that looks a call up, replays it, and otherwise calls ``first``."""
    options, given = parameters.options, list(parameters.signature.parameters.values())
    tensors = [f"_{operand}" for name in parameters.pairs for operand in (name, f"sf{name}")] + list(parameters.tensors)
    defaults = {each.name: each.default for each in given if each.name in options and each.default is not None}
    required = [option for option in options if defaults.get(option) is inspect.Parameter.empty]
    compared = [option for option in options if option not in required]
    at_defaults = [f"{each} is {f'_{each}' if each in defaults else 'None'}" for each in compared]
    return _template("entry").render(
        name=name,
        defaults=[f"_{each.name}" for each in given if _is_value(each.default)],
        signature=", ".join(_declared(given)) + (", **others" if parameters.lenient else ""),
        forwarded=", ".join(map(_forwarded, given)) + (", **others" if parameters.lenient else ""),
        unpacked=[(f"_{each}, _sf{each}", each) for each in parameters.pairs],
        options=options,
        at_defaults=at_defaults if not required else ["False"],
        kinds=[f"_type({each})" for each in options],
        key=f"{tensors[0]}.shape",
        replayed=", ".join([*tensors, *parameters.numbers]),
    )


def _is_value(default: Any) -> bool:
    return default is not inspect.Parameter.empty and default is not None


def _declared(parameters: Sequence[inspect.Parameter]) -> list[str]:
    lines, starred = [], False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        default = f"=_{each.name}" if _is_value(each.default) else "=None" if each.default is None else ""
        lines.append(f"{each.name}{default}")
    return lines


def _forwarded(parameter: inspect.Parameter) -> str:
    keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
    return f"{parameter.name}={parameter.name}" if keyword else parameter.name


@dataclass(frozen=True)
class Pattern:
    """What a call did, as far as the text of its replay depends on it. Tensors are arguments by position.

    ``same_as`` has for each argument None where it is None, its own position, or that of an equal object before it;
    ``new`` counts outputs that are allocated, which come behind the arguments; ``copied`` are a tensor, and the words
    of the block that the address of its copy goes to. ``patched`` are word and tensor, ``room`` word and workspace,
    ``numbers`` offset and position of a number. ``overlaps`` are an output that was given and a tensor that must not
    meet it; ``returned`` are tensors, None if the function returns None.
    """

    same_as: tuple[int | None, ...]
    count_of_numbers: int
    new: int
    copied: tuple[tuple[int, tuple[int, ...]], ...]
    patched: tuple[tuple[int, int], ...]
    room: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, int], ...]
    overlaps: tuple[tuple[int, int], ...]
    bumped: tuple[int, ...]
    returned: tuple[int, ...] | None
    aligned: bool
    one_device: bool
    asks_gradient: bool

    @property
    def distinct(self) -> list[int]:
        """Positions of arguments that are tensors, each object once."""
        return [at for at, same in enumerate(self.same_as) if same == at]


def replay_text(pattern: Pattern) -> str:
    """``make`` of a function that repeats a call with other tensors alike, and of one that says whether it would."""
    count, distinct = len(pattern.same_as), pattern.distinct
    new = [(f"t{count + each}", each) for each in range(pattern.new)]
    numbers = [f"n{each}" for each in range(pattern.count_of_numbers)]
    known = [*distinct, *(count + each for each in range(pattern.new))]
    if pattern.aligned:
        misaligned = f"({' | '.join(f'p{at}' for at in known)}) & 31"
    else:
        misaligned = f"({', '.join(f'p{at} & 31' for at in known)}) != low_bits"
    return _template("replay").render(
        constants=_constants(pattern),
        tensors=", ".join(f"t{at}" for at in range(count)),
        arguments=", ".join([f"t{at}" for at in range(count)] + numbers),
        conditions=_conditions(pattern),
        refused_if=_refused_if(pattern, numbers),
        allocated=new,
        addresses=[(f"p{at}", f"t{at}") for at in known],
        misaligned=misaligned,
        ends=[
            (f"e{output}", f"p{output}", f"size{output}") for output in sorted({pair[0] for pair in pattern.overlaps})
        ],
        overlaps=[f"p{at} < e{output} and p{output} < p{at} + size{at}" for output, at in pattern.overlaps],
        copied=[(f"t{at}", words) for at, words in pattern.copied],
        patched=[(word, f"p{at}") for word, at in pattern.patched],
        room=pattern.room,
        numbers=[(offset, numbers[at]) for offset, at in pattern.numbers],
        bumped=[f"t{at}" for at in pattern.bumped],
        returned=_returned(pattern),
    )


def _constants(pattern: Pattern) -> list[str]:
    names = ["alike", "gradients", "device", "index", "empty", "low_bits", "allocate", "take", "new_frame", "give_back"]
    names += ["pack_number", "stream", "bump"]
    for each in range(pattern.new):
        names += [f"shape{each}", f"strides{each}", f"dtype{each}"]
    names += [f"copy{each}" for each in range(len(pattern.copied))]
    return names + sorted({f"size{at}" for pair in pattern.overlaps for at in pair})


def _conditions(pattern: Pattern) -> list[str]:
    """That arguments are None, the same object as others, or like those that were seen; what differs most first."""
    lines = []
    for at, same in enumerate(pattern.same_as):
        if same != at:
            lines.append(f"t{at} is {'None' if same is None else f't{same}'}")
    return [*lines, f"alike({', '.join(f't{at}' for at in reversed(pattern.distinct))})"]


def _refused_if(pattern: Pattern, numbers: Sequence[str]) -> list[str]:
    lines = [f"type({number}) is not float" for number in numbers]
    if pattern.asks_gradient:
        lines.append("gradients()")
    if not pattern.one_device:
        lines.append("device() != index")
    return lines


def _returned(pattern: Pattern) -> str:
    if pattern.returned is None:
        return "None"
    names = [f"t{at}" for at in pattern.returned]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


@cache
def replay_maker(pattern: Pattern, name: str) -> Callable[..., tuple[Callable[..., Any], Callable[..., bool]]]:
    """``make`` of ``replay_text``: most calls of a function do the same with other sizes."""
    return compiled(replay_text(pattern), name)


def compiled(text: str, name: str) -> Callable[..., Any]:
    """The ``make`` of a text; tracebacks call it by ``name``."""
    room: dict[str, Any] = {}
    exec(compile(text, f"<{name} by gemmgen.ops.hot_text>", "exec"), room)
    make: Callable[..., Any] = room["make"]
    return make


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("gemmgen", "templates/host"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(f"{name}.py.jinja")
