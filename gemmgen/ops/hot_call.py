"""Calls that were made before, made again: from a function's arguments to the driver in one straight line.

The first call with arguments of a kind takes the long way: it checks, chooses, compiles, launches, and what it launched
is recorded. If that was one kernel, and everything it read and wrote is an argument or was allocated as an output, a
later call with arguments alike needs nothing but their addresses. So ``hot`` puts a function in front that looks for
such a call and repeats it, and anything that differs, fails or is refused takes the long way again.

Knows functions, tensors and prepared launches; no operator's meaning.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakSet

import torch

from gemmgen.ops import library
from gemmgen.ops.block import PatchedBlock
from gemmgen.ops.guards import alike
from gemmgen.ops.hot_text import Parameters, Pattern, compiled, entry_text, replay_maker
from gemmgen.ops.launch import Launched, recorded
from gemmgen.ops.settings import CHANGING, SETTINGS_LIMIT, Settings, changes, watch

P = ParamSpec("P")
R = TypeVar("R")
Replay = Callable[..., Any]
"""Takes the tensors and numbers of a call; its result, or NotImplemented where it is not alike."""

CALLS_LIMIT = 4096
"""Calls remembered for one function; a server that sees more starts over."""
ALIKE_LIMIT = 32
"""Calls remembered for one shape of the first tensor and one choice of options; the oldest goes."""

_ALL: WeakSet[HotCalls] = WeakSet()


def hot(
    pairs: Sequence[str] = (), tensors: Sequence[str] = (), numbers: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Put a function in front of an operator's that repeats calls which were made before.

    ``pairs`` are parameters that are data and scales, ``tensors`` those that are tensors or None, ``numbers`` host
    scalars; all others are options, and calls with other options are other calls. The kernels' operands must have the
    parameters' names, and scales ``sf`` before it.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = Parameters(inspect.signature(function), tuple(pairs), tuple(tensors), tuple(numbers))
        return cast(Callable[P, R], wraps(function)(HotCalls(function, parameters, function.__name__).entry))

    return decorate


def named_entry(
    function: Callable[..., Any],
    signature: inspect.Signature,
    name: str,
    pairs: tuple[str, ...],
    tensors: tuple[str, ...],
    numbers: tuple[str, ...],
) -> Callable[..., Any]:
    """The same for a function whose signature is data; it refuses itself what is missing or unknown by name."""
    given, by_name = list(signature.parameters.values()), inspect.Parameter.KEYWORD_ONLY
    optional = [each.replace(default=None) if each.kind is by_name else each for each in given]
    parameters = Parameters(signature.replace(parameters=optional), pairs, tensors, numbers, lenient=True)
    return HotCalls(function, parameters, name).entry


def remembering() -> list[HotCalls]:
    """Every function's calls."""
    return list(_ALL)


def forget() -> None:
    """Let the next call of every function take the long way."""
    for calls in remembering():
        calls.forget()


@watch
def _switch(before: Settings, after: Settings) -> None:
    """What is repeated was launched under the settings that hold; nothing is, where that cannot be told."""
    try:
        for calls in remembering():
            calls.switch(before, after)
    except BaseException:
        forget()
        raise


class HotCalls:
    """The calls of one function that can be repeated; those of other settings than the present ones rest."""

    def __init__(self, function: Callable[..., Any], parameters: Parameters, name: str) -> None:
        self.function, self.parameters, self.name = function, parameters, name
        self._operands, self._options = parameters.operands, parameters.options
        self._plain: dict[Any, tuple[Replay, ...]] = {}
        self._with_options: dict[Any, dict[Any, tuple[Replay, ...]]] = {}
        self._known: dict[Any, list[Known]] = {}
        self._count = 0
        self._resting: dict[Settings, tuple[Any, ...]] = {}
        self.newest: Known | None = None
        _ALL.add(self)
        values = {
            f"_{each.name}": each.default
            for each in parameters.signature.parameters.values()
            if each.default is not inspect.Parameter.empty and each.default is not None
        }
        make = compiled(entry_text(name, parameters), name)
        tracing = torch.compiler.is_dynamo_compiling
        self.entry: Callable[..., Any] = make(
            tracing, function, self._first, self._plain, self._with_options, type, **values
        )

    def _first(self, *positional: Any, **named: Any) -> Any:
        """The long way, and what it did is remembered."""
        before = changes()
        with recorded() as launched:
            result = self.function(*positional, **named)
        first = launched[0] if len(launched) == 1 else None
        if first is not None and isinstance(first.prepared.build, PatchedBlock):
            arguments = dict(zip(self.parameters.signature.parameters, (*positional, *named.values()), strict=False))
            call = _Call(self._given(arguments), self._numbers(arguments), result, first)
            with CHANGING:
                if changes() == before:  # else another thread changed settings, and perhaps back
                    self._remember(call, arguments)
        return result

    def _given(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call in the order of the operands."""
        parts = [part for name in self.parameters.pairs for part in arguments[name]]
        return (*parts, *(arguments[name] for name in self.parameters.tensors))

    def _numbers(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(arguments[name] for name in self.parameters.numbers)

    def _remember(self, call: _Call, arguments: dict[str, Any]) -> None:
        options = tuple([arguments[name] for name in self._options])
        if len(call.given) != len(self._operands) or not call.repeats():
            return
        if any(isinstance(each, torch.Tensor) for each in options):
            return
        shape = call.given[0].shape
        key = (options, tuple(map(type, options)), shape)
        try:
            known = self._known.get(key, [])
        except TypeError:  # options that are lists
            return
        if any(each.low_bits == call.low_bits and each.serves(*call.given) for each in known):
            return  # it was not repeated because of where its tensors lie, or of the current device
        if (places := call.places(self._operands)) is None:
            return
        if self._count >= CALLS_LIMIT:
            self.forget()
            known = []
        self._count += 1
        self.newest = call.known(self.name, places)
        known.insert(0, self.newest)
        del known[ALIKE_LIMIT:]
        self._known[key] = known
        self._publish(options, shape, tuple([each.replay for each in known]))

    def _publish(self, options: tuple[Any, ...], shape: torch.Size, replays: tuple[Replay, ...]) -> None:
        defaults = [self.parameters.signature.parameters[name].default for name in self._options]
        if all(option is default for option, default in zip(options, defaults, strict=True)):
            self._plain[shape] = replays
        if options:
            self._with_options.setdefault((*options, *map(type, options)), {})[shape] = replays

    def switch(self, before: Settings, after: Settings) -> None:
        """Lay aside what is remembered, and take up what was under the settings that hold now."""
        resting = self._resting.pop(after, None)
        if self._count:
            self._resting[before] = dict(self._plain), dict(self._with_options), dict(self._known), self._count
        if len(self._resting) > SETTINGS_LIMIT:
            del self._resting[next(iter(self._resting))]  # which has rested longest
        self._clear()
        if resting is not None:
            plain, with_options, known, self._count = resting
            self._known.update(known)
            self._with_options.update(with_options)
            self._plain.update(plain)

    def forget(self) -> None:
        """Let every call take the long way once more."""
        self._clear()
        self._resting.clear()

    def _clear(self) -> None:
        self._plain.clear()
        self._with_options.clear()
        self._known.clear()
        self._count, self.newest = 0, None


@dataclass(frozen=True)
class Known:
    """A remembered call: what repeats it, whether it would with other tensors, and the low bits of its addresses.

    ``new_frame`` makes the memory of a launch, with the addresses of the first call that was prepared so.
    """

    replay: Replay
    serves: Callable[..., bool]
    low_bits: tuple[int, ...]
    new_frame: Callable[[], Any]


class _Call:
    """One call that was made: its tensors by position, behind them allocated outputs, its numbers and its launch."""

    def __init__(self, given: tuple[Any, ...], numbers: tuple[Any, ...], result: Any, launched: Launched) -> None:
        self.given, self.numbers, self.launched = given, numbers, launched
        self.returned = None if result is None else result if isinstance(result, tuple) else (result,)
        self.same_as = tuple([_first_place(given, each) for each in given])
        self.compared = [each for at, each in enumerate(given) if self.same_as[at] == at]
        self.new = [each for each in self.returned or () if _first_place(given, each) is None]
        self.tensors = (*given, *self.new)
        self.distinct = [*self.compared, *self.new]

    @property
    def low_bits(self) -> tuple[int, ...]:
        """Of the addresses of all tensors that differ."""
        return tuple([tensor.data_ptr() & 31 for tensor in self.distinct])

    def repeats(self) -> bool:
        """Whether addresses and numbers are all that may differ in another call of its kind."""
        scalars = self.launched.scalars
        tensors = all(isinstance(each, torch.Tensor) for each in self.distinct)
        return (
            tensors
            and library.is_direct(self.distinct)
            and scalars == self.numbers
            and all(type(number) is float for number in self.numbers)
        )

    def places(self, operands: Sequence[str]) -> list[int] | None:
        """Which tensor each operand of the kernel is, an argument of its name or an allocated output; None if none."""
        found = []
        for name, slot in zip(self.launched.prepared.names, self.launched.slots, strict=True):
            at = operands.index(name) if name in operands else None
            if at is not None and self.given[at] is not None:
                place = self.same_as[at]
            else:
                place = _first_place(self.tensors, slot)
            if place is None or self.tensors[place].data_ptr() != slot.data_ptr():
                return None
            found.append(place)
        return found

    def known(self, name: str, places: Sequence[int]) -> Known:
        """The functions that repeat it."""
        prepared = self.launched.prepared
        pattern = self._pattern(places)
        sizes = {f"size{place}": prepared.span(at) for at, place in enumerate(places)}
        make = replay_maker(pattern, name)
        needed = {f"size{at}" for pair in pattern.overlaps for at in pair}
        constants = self._constants() | {f"copy{each}": copy for each, (_, copy) in enumerate(prepared.copied)}
        replay, serves = make(**constants, **{size: sizes[size] for size in sorted(needed)})
        return Known(replay, serves, self.low_bits, constants["new_frame"])

    def _pattern(self, places: Sequence[int]) -> Pattern:
        prepared, target = self.launched.prepared, self.launched.prepared.launch.target
        assert isinstance(prepared.build, PatchedBlock)
        words = [(at // 8, each) for at, each in prepared.build.addresses]
        copied = [at for at, _ in prepared.copied]
        given = [(places[at], at) for at, _ in prepared.outputs if places[at] < len(self.given)]
        return Pattern(
            same_as=self.same_as,
            count_of_numbers=len(self.numbers),
            new=len(self.new),
            copied=tuple([(places[at], tuple([word for word, each in words if each == at])) for at in copied]),
            patched=tuple([(word, places[each]) for word, each in words if each < len(places) and each not in copied]),
            room=tuple([(word, each - len(places)) for word, each in words if each >= len(places)]),
            numbers=prepared.build.scalars,
            overlaps=tuple([(output, other) for output, _ in given for other in sorted({*places}) if other != output]),
            bumped=tuple([output for output, _ in given if not self.tensors[output].is_inference()]),
            returned=None if self.returned is None else tuple([_place(self.tensors, each) for each in self.returned]),
            aligned=not any(self.low_bits),
            one_device=target.only_device,
            asks_gradient=any(tensor.requires_grad for tensor in self.compared),
        )

    def _constants(self) -> dict[str, Any]:
        launch, build = self.launched.prepared.launch, self.launched.prepared.build
        assert isinstance(build, PatchedBlock)
        target, device = launch.target, self.distinct[0].device

        def new_frame() -> Any:
            frame = launch.handle.frame(launch.programmatic)
            frame.fill(launch.grid, build.base)
            return frame

        frames = [new_frame()]
        constants = {
            "alike": alike(self.compared[::-1]),
            "gradients": torch.is_grad_enabled,
            "device": target.current_device,
            "index": device.index,
            "empty": target.empty_strided,
            "low_bits": self.low_bits,
            "allocate": launch.room(self.launched.prepared.workspace, target.empty_strided),
            "take": frames.pop,
            "new_frame": new_frame,
            "give_back": frames.append,
            "pack_number": struct.Struct("<f").pack_into,
            "stream": target.raw_stream,
            "bump": torch._C._increment_version,
        }
        for each, tensor in enumerate(self.new):
            constants |= {f"shape{each}": tuple(tensor.shape), f"strides{each}": tensor.stride()}
            constants[f"dtype{each}"] = tensor.dtype
        return constants


def _first_place(tensors: Sequence[Any], tensor: Any) -> int | None:
    """Where a tensor, and not one that equals it, is first among others; None for None."""
    return next((at for at, each in enumerate(tensors) if each is tensor and tensor is not None), None)


def _place(tensors: Sequence[Any], tensor: Any) -> int:
    at = _first_place(tensors, tensor)
    assert at is not None
    return at
