"""What callers set for the process beside the alignment of groups: multiprocessors, early launches, fixed sums.

Set around calls and restored, mostly, so what was prepared under one setting is kept while another holds, and is found
under it alone. What a call prepared while they changed is not kept; captured graphs keep what they were captured with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from gemmgen.ir import AnyPlan, LayoutPlan, SplitK
from gemmgen.ops.architecture import family_here
from gemmgen.ops.whole_numbers import whole_numbers
from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.kernel_text import Target
from gemmgen.runtime.preparation import current_preparation
from gemmgen.runtime.simulation import current_simulation

SETTINGS_LIMIT = 8
"""Settings of which prepared launches are kept at a time, beside the present ones' hot calls."""


class Settings(NamedTuple):
    """All of them: multiprocessors to use (None for all), whether kernels start early, whether K is never shared."""

    num_sms: int | None = None
    early: bool = False
    deterministic: bool = False

    def sms(self, target: Target) -> int:
        """Multiprocessors that rules count with."""
        return target.sms if self.num_sms is None else min(self.num_sms, target.sms)

    def grid_sms(self, plan: AnyPlan, target: Target) -> int:
        """Those that a grid is made for: with fewer than there are, CTAs alone are counted, as each may get its own."""
        sms = self.sms(target)
        if sms == target.sms or isinstance(plan, LayoutPlan):
            return sms
        least = 1 if isinstance(plan.schedule, SplitK) and plan.schedule.whole_waves else 0  # a wave has a tile
        return max(least, sms // plan.ctas_per_sm)


CHANGING = threading.RLock()
"""Held while settings change, and while somebody keeps what belongs to the present ones."""
_now = Settings()
_changes = 0
_watchers: list[Callable[[Settings, Settings], None]] = []


def now() -> Settings:
    """The present ones."""
    return _now


def changes() -> int:
    """How often they have changed: the present ones may have been others meanwhile."""
    return _changes


def watch(changed: Callable[[Settings, Settings], None]) -> Callable[[Settings, Settings], None]:
    """Have a function called with the settings before and after whenever they change."""
    _watchers.append(changed)
    return changed


def _change(**fields: Any) -> None:
    global _now, _changes
    with CHANGING:
        before, after = _now, _now._replace(**fields)
        if before != after:
            _now, _changes = after, _changes + 1
            with ExitStack() as told:  # all of them, also where one fails or is interrupted
                for changed in _watchers:
                    told.callback(changed, before, after)


def get_num_sms() -> int:
    """Multiprocessors that kernels use: those that were set, or all of the current device, or of what is simulated.

    Raises ``DeviceError`` where none was set and there is neither.
    """
    sms, limit = _sms_here(), _now.num_sms
    if sms is None and limit is None:
        raise DeviceError('there is no GPU and none is simulated; call it with one, or in `gemmgen.simulate("sm90")`')
    return min(each for each in (sms, limit) if each is not None)


def set_num_sms(num_sms: int) -> None:
    """Let products launch no more than so many CTAs, for the process, from the next call on; all SMs lift the limit.

    Each CTA may get a multiprocessor of its own, so no more are in use than that. Kernels that launch a CTA for every
    tile give way to those that walk tiles. Where no other serves a problem it is launched all the same; so are kernels
    that turn scales or factors, and at least one cluster. Which tile is taken may
    change, as entries of tuned files are for a whole GPU.

    num_sms: 1 to the multiprocessors of the current device, or of what is simulated. Raises ``TypeError`` for what is
        no whole number and ``ValueError`` for one beyond those.
    """
    if (found := whole_numbers((num_sms,))) is None or isinstance(num_sms, bool):
        raise TypeError(f"num_sms: is a {type(num_sms).__name__}; must be a whole number of SMs, such as 66")
    (count,), sms = found, _sms_here()
    if count < 1 or (sms is not None and count > sms):
        there = "" if sms is None else f" to {sms}, which the device has"
        raise ValueError(f"num_sms: is {count}; must be a number of multiprocessors from 1{there}")
    _change(num_sms=None if count == sms else count)


def get_pdl() -> bool:
    """Whether dense products start before the kernel ahead of them has ended; not by default."""
    return _now.early


def set_pdl(enabled: bool) -> None:
    """Let dense products of sm90 start before the kernel ahead of them in the stream has ended, from the next call on.

    They make barriers meanwhile, and wait for that kernel before they read or write any memory of a call, so this is
    right whatever is ahead. Reading weights before the wait gains more and is right only where nothing in flight writes
    them, so no setting does it: ``spec_for(..., programmatic_launch=True)`` makes such kernels. Products of groups, the
    prenorm product, and sm100 and sm120, start as they do without. Raises ``TypeError`` for what is no bool.
    """
    _change(early=_flag("enabled", enabled))


def get_deterministic_algorithms() -> bool:
    """Whether kernels in which CTAs or warpgroups share the K blocks of a tile are left out; not by default."""
    return _now.deterministic


def use_deterministic_algorithms(enabled: bool) -> None:
    """Let a row of a product have the same bits however many rows there are, from the next call on.

    Results repeat bit for bit anyway. But with few tiles several CTAs may share K, and their sums are added up in
    another order than one CTA has. With this every sum goes along K from its begin, or that of its slice, in one CTA,
    whatever m, groups and the tile are, and a bias is added first by all tiles or last by all. Few rows take longer. It
    holds for what is one number of a row and column: products of all operators with their epilogues, but not what
    ``Reduce`` adds up; ``gemmgen.op`` keeps the tile that it was given. Raises ``TypeError`` for what is no bool.
    """
    _change(deterministic=_flag("enabled", enabled))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: is {value!r}; must be True or False")
    return value


def _sms_here() -> int | None:
    """Multiprocessors of what calls without tensors mean; None without any."""
    if (preparation := current_preparation()) is not None:
        return preparation.sms
    if (simulation := current_simulation()) is not None:
        return simulation.sms
    if family_here() is None:
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
