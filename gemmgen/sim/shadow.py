"""Who wrote and read each word of shared memory last, as vector clocks: races, proxies and barriers that were skipped.
It judges order only; it holds no data and knows no instruction."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .errors import Fault
from .types import Array

CLOCK_ROWS = 3
NEVER = np.int32(2**30)  # an access that is still in flight: later than anything a clock can hold
UNWAITED = np.int32(2**30 - 1)
SOME_LANES, EVERY_LANE = -1, -2  # who wrote a word: parts of it by several lanes; all lanes together (stmatrix)
Index = Any  # an integer array, or a slice for a contiguous box


class Actor(Protocol):
    """A warp as the shadow sees it: its number, clocks [happens-before, proxy-fenced, loads settled] and own epoch."""

    number: int
    clock: Array
    epoch: int
    lane_epoch: int
    soft_epoch: int
    waited: list[tuple[int, slice, int]]

    def stores(self) -> None: ...


class Shadow:
    """One per CTA; actors are the warps of its cluster, then the mbarriers of its cluster."""

    def __init__(self, nbytes: int, warps: int, names: Any) -> None:
        words = -(-nbytes // 4)
        self.names = names
        self.warps = warps
        self.writer = np.zeros(words, np.int16)
        self.written = np.zeros(words, np.int32)
        self.lane = np.full(words, -1, np.int8)
        self.generic = np.zeros(words, np.bool_)
        self.read = np.zeros((warps, words), np.int32)
        self.read_lane = np.full(words, -1, np.int8)  # the last lane that read, of whichever warp
        self.loaded = np.zeros((warps, words), np.int32)  # as `read`, by ordinary loads and ldmatrix only

    # generic proxy

    def generic_read(self, warp: Actor, words: Array, lanes: Array) -> None:
        """A load of these words by these lanes of a warp (lanes broadcast against words)."""
        writer, written = self.writer[words], self.written[words]
        if not (warp.clock[0][writer] >= written).all():
            self._unordered_write("reads", warp, words, warp.clock[0])
        same = (writer == warp.number) & (written >= warp.lane_epoch) & (written > 0)
        if same.any():
            self._check_lanes(warp, words, same & (self.lane[words] != lanes) & (self.lane[words] >= 0))
        self.read[warp.number][words] = warp.epoch
        self.loaded[warp.number][words] = warp.epoch
        self.read_lane[words] = lanes

    def _check_read_lanes(self, warp: Actor, words: Array, lanes: Array) -> None:
        """Lanes overwrite what other lanes of their warp read since the last warp synchronisation."""
        read, reader = self.read[warp.number][words], self.read_lane[words]
        crossed = (read >= warp.lane_epoch) & (read != NEVER) & (read > 0) & (reader != lanes) & (reader >= 0)
        if crossed.any():
            word = self._first(words, crossed)
            text = (
                f"{self.names.shared(word * 4)}: one lane overwrites what lane {int(self.read_lane[word])} of the same "
                "warp read, with no warp synchronisation between (bar.warp.sync, bar.sync or a barrier wait)"
            )
            self._lane_race(warp, int(self.read[warp.number][word]), text)

    def _check_lanes(self, warp: Actor, words: Array, crossed: Array) -> None:
        """Lanes read what other lanes of their warp wrote since the last warp synchronisation."""
        if not crossed.any():
            return
        word = self._first(words, crossed)
        text = (
            f"{self.names.shared(word * 4)}: one lane reads what lane {int(self.lane[word])} of the same warp wrote, "
            "with no warp synchronisation between (bar.warp.sync, bar.sync or a barrier wait)"
        )
        self._lane_race(warp, int(self.written[word]), text)

    def generic_write(self, warp: Actor, words: Array, lanes: Array, whole: bool = True) -> None:
        """A store to these words; parts of words are not checked against each other."""
        if warp.waited:
            self._check_waited(warp, words, lanes)
        if whole:
            self._check_overwrite("writes", words, warp.clock[0])
            if not np.any(np.asarray(lanes) < 0):
                self._check_read_lanes(warp, words, lanes)
        self.writer[words] = warp.number
        self.written[words] = warp.epoch
        self.lane[words] = lanes if whole else SOME_LANES
        self.generic[words] = True
        warp.stores()

    def _check_waited(self, warp: Actor, words: Array, lanes: Array) -> None:
        """Lanes overwrite what an asynchronous copy read, for which only another lane of their warp has waited."""
        for lane, done, epoch in warp.waited:
            crossed = (words >= done.start) & (words < done.stop) & (lanes != lane)
            if crossed.any():
                word = self._first(words, crossed)
                self._lane_race(
                    warp,
                    epoch,
                    f"{self.names.shared(word * 4)}: overwrites what a copy issued by lane {lane} read; only that lane "
                    "has waited for the copy, and no warp synchronisation (bar.warp.sync) follows",
                )

    def _lane_race(self, warp: Actor, epoch: int, text: str, met: int = 0) -> None:
        if epoch >= max(warp.soft_epoch, met):
            self.names.gpu.race(text)
        else:
            self.names.gpu.warn(text + "; only a shuffle, vote or election stands between, which orders no memory")

    # asynchronous proxy

    def check_issuer(self, warp: Actor, lane: int, words: slice, what: str, met: int = 0) -> None:
        """A lane hands words to the async proxy: its warp must have been synchronised since other lanes wrote them.

        Writes before the epoch `met`, at which all lanes met without promise of memory order, give a warning only.
        """
        since = (self.writer[words] == warp.number) & (self.written[words] >= warp.lane_epoch) & self.generic[words]
        crossed = since & (self.lane[words] != lane) & (self.lane[words] != SOME_LANES)
        if crossed.any():
            word = self._first(words, crossed)
            self._lane_race(
                warp,
                int(self.written[word]),
                f"{self.names.shared(word * 4)}: {what} by lane {lane} reads what other lanes of the warp wrote, with "
                "no warp synchronisation between (bar.warp.sync, bar.sync or a barrier wait)",
                met,
            )

    def async_read(self, clock: Array, warp: int, words: Index, what: str) -> None:
        """An asynchronous read issued with this clock; it stays in flight until async_read_done."""
        writer, written = self.writer[words], self.written[words]
        if not (clock[0][writer] >= written).all():
            self._unordered_write(f"{what} reads", None, words, clock[0])
        unfenced = self.generic[words] & (clock[1][writer] < written)
        if unfenced.any():
            word = self._first(words, unfenced)
            self.names.gpu.race(
                f"{self.names.shared(word * 4)}: {what} reads through the async proxy what "
                f"{self.names.actor(int(self.writer[word]))} wrote with ordinary stores; "
                "fence.proxy.async is missing between the store and the issue"
            )
        self.read[warp][words] = NEVER

    def single_source(self, words: Index) -> tuple[int, int, bool] | None:
        """(writer, latest epoch, any by ordinary stores) when one actor wrote all the words, else None."""
        writer = self.writer[words]
        if not (writer == writer[0]).all():
            return None
        return int(writer[0]), int(self.written[words].max()), bool(self.generic[words].any())

    def async_read_of(
        self, source: tuple[int, int, bool] | None, clock: Array, warp: int, words: Index, what: str
    ) -> None:
        """async_read of words whose single source is known; spares the word-by-word look."""
        if source is not None:
            writer, written, generic = source
            if clock[0, writer] >= written and (not generic or clock[1, writer] >= written):
                self.read[warp][words] = NEVER
                return
        self.async_read(clock, warp, words, what)

    def unordered(self, clock: Array, words: Index) -> Array:
        """Which words an asynchronous read with this clock may see before or while they are written."""
        writer, written = self.writer[words], self.written[words]
        bad: Array = (clock[0][writer] < written) | (self.generic[words] & (clock[1][writer] < written))
        return bad

    def async_read_done(self, warp: Actor, words: Index) -> None:
        """The issuing warp has waited for an asynchronous read."""
        self.read[warp.number][words] = warp.epoch

    def async_read_again(self, warp: Actor, words: Index) -> None:
        """Another read of the same words by the same warp is still in flight."""
        self.read[warp.number][words] = NEVER

    def async_write(self, clock: Array, words: Index, actor: int, epoch: int, what: str, generic: bool = False) -> None:
        """An asynchronous write lands; readers must see actor at epoch before they touch the words."""
        self._check_overwrite(f"{what} writes", words, clock[0])
        if not generic:
            self._check_overwrite_fenced(clock, words, what)
            self._check_loads_settled(clock, words, what)
        self.writer[words] = actor
        self.written[words] = epoch
        self.lane[words] = SOME_LANES
        self.generic[words] = generic

    def _check_overwrite_fenced(self, clock: Array, words: Index, what: str) -> None:
        unfenced = self.generic[words] & (clock[1][self.writer[words]] < self.written[words])
        if unfenced.any():
            word = self._first(words, unfenced)
            self.names.gpu.race(
                f"{self.names.shared(word * 4)}: {what} overwrites through the async proxy what "
                f"{self.names.actor(int(self.writer[word]))} wrote with ordinary stores; "
                "fence.proxy.async is missing between"
            )

    def _check_loads_settled(self, clock: Array, words: Index, what: str) -> None:
        """The copy engine may overwrite what a load has yet to read, although its lane has arrived.

        Seen on an H100 behind ldmatrix, and on an H200 behind loads that waited for stores of their own warp.
        """
        late = self.loaded[:, words] > clock[2, : self.warps].reshape((-1,) + (1,) * (self.loaded[:, words].ndim - 1))
        if late.any():
            reader = int(np.nonzero(late)[0][0])
            word = self._first(words, late[reader])
            self.names.gpu.warn(
                f"{self.names.shared(word * 4)}: {what} overwrites through the async proxy what "
                f"{self.names.actor(reader)} read with ordinary loads; they may be in flight when it arrives at a "
                "barrier, so put fence.proxy.async (or a barrier of the CTA) between"
            )

    def _check_overwrite(self, verb: str, words: Index, clock: Array) -> None:
        if not (clock[self.writer[words]] >= self.written[words]).all():
            self._unordered_write(verb, None, words, clock)
        read = self.read[:, words]
        late = read > clock[: self.warps].reshape((-1,) + (1,) * (read.ndim - 1))
        if late.any():
            reader = int(np.nonzero(late)[0][0])
            word = self._first(words, late[reader])
            flight = " (still in flight)" if self.read[reader, word] == NEVER else ""
            self.names.gpu.race(
                f"{self.names.shared(word * 4)}: {verb} it while {self.names.actor(reader)} may still read it{flight}; "
                "no barrier orders the read before the write"
            )

    def _unordered_write(self, verb: str, warp: Actor | None, words: Index, clock: Array) -> None:
        bad = clock[self.writer[words]] < self.written[words]
        word = self._first(words, bad)
        if self.written[word] == NEVER:
            raise Fault(
                f"{self.names.shared(word * 4)}: {verb} an mbarrier as if it were data; mbarrier.inval it first"
            )
        how = "wrote it" if self.written[word] != UNWAITED else "wrote it with a cp.async it has not waited for"
        self.names.gpu.race(
            f"{self.names.shared(word * 4)}: {verb} it, but {self.names.actor(int(self.writer[word]))} {how} "
            "and no barrier orders that write before this"
        )

    @staticmethod
    def _first(words: Index, bad: Array) -> int:
        first = int(np.flatnonzero(np.asarray(bad).reshape(-1))[0])
        return words.start + first if isinstance(words, slice) else int(np.asarray(words).reshape(-1)[first])

    def in_flight(self, words: Array) -> None:
        """cp.async has landed here, but its thread has not waited: nobody may read yet."""
        self.written[words] = UNWAITED

    def landed(self, warp: Actor, words: Array) -> None:
        """The thread has waited for its cp.async; words it waited for before keep their time."""
        self.written[words[self.written[words] == UNWAITED]] = warp.epoch

    def forget(self, words: Array) -> None:
        """Words used as flags by volatile or atomic accesses: their order is not judged."""
        self.written[words] = 0
        self.generic[words] = False

    def protect(self, word: int) -> None:
        """Mark the two words of an mbarrier: only mbarrier instructions may touch them."""
        self.written[word : word + 2] = NEVER

    def unprotect(self, word: int, warp: Actor) -> None:
        self.writer[word : word + 2] = warp.number
        self.written[word : word + 2] = warp.epoch
        self.generic[word : word + 2] = True

    def is_protected(self, words: Array) -> bool:
        return bool((self.written[words] == NEVER).any())
