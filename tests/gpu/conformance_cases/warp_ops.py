"""Instructions between the lanes of a warp: shfl, vote, match, redux, elect, activemask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .case import PRELUDE, Array, Case, In, Parameter, generator, out

WARPS = 8
LANES = 32


@dataclass(frozen=True)
class Shuffle:
    """A shfl mode with its clamp operand: the segment mask above 8 bits, the bound below."""

    mode: str
    clamp: int

    @property
    def kernel(self) -> str:
        return f"shfl_{self.mode}_{self.clamp:x}"


SHUFFLES = (
    *[Shuffle(m, 0x1F) for m in ("idx", "down", "bfly")],
    Shuffle("up", 0),
    *[Shuffle(m, 0x181F) for m in ("idx", "down", "bfly")],  # segments of 8
    Shuffle("up", 0x1800),
    Shuffle("idx", 0x1005),
)
VOTES = ("all", "any", "uni", "ballot")
REDUCTIONS: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
    ("add", "u32", np.add.reduce),
    ("min", "u32", np.min),
    ("max", "u32", np.max),
    ("min", "s32", np.min),
    ("max", "s32", np.max),
    ("and", "b32", np.bitwise_and.reduce),
    ("or", "b32", np.bitwise_or.reduce),
    ("xor", "b32", np.bitwise_xor.reduce),
)


def _shuffle_kernel(s: Shuffle) -> str:
    return f"""
extern "C" __global__ void {s.kernel}(const u32* in, const u32* lanes, u32* to, u32* inside) {{
  u32 value, ok;
  asm volatile("{{ .reg .pred p; shfl.sync.{s.mode}.b32 %0|p, %2, %3, {s.clamp:#x}, 0xffffffff; "
               "selp.b32 %1, 1, 0, p; }}"
               : "=r"(value), "=r"(ok) : "r"(in[threadIdx.x]), "r"(lanes[threadIdx.x]));
  to[threadIdx.x] = value;
  inside[threadIdx.x] = ok;
}}
"""


def _vote_kernel(mode: str) -> str:
    if mode == "ballot":
        text = "vote.sync.ballot.b32 %0, p, 0xffffffff;"
    else:
        text = f".reg .pred q; vote.sync.{mode}.pred q, p, 0xffffffff; selp.b32 %0, 1, 0, q;"
    return f"""
extern "C" __global__ void vote_{mode}(const u32* in, u32* to) {{
  u32 result;
  asm volatile("{{ .reg .pred p; setp.ne.u32 p, %1, 0; {text} }}" : "=r"(result) : "r"(in[threadIdx.x]));
  to[threadIdx.x] = result;
}}
"""


def _redux_kernel(op: str, kind: str) -> str:
    return f"""
extern "C" __global__ void redux_{op}_{kind}(const u32* in, u32* to) {{
  u32 result;
  asm volatile("redux.sync.{op}.{kind} %0, %1, 0xffffffff;" : "=r"(result) : "r"(in[threadIdx.x]));
  to[threadIdx.x] = result;
}}
"""


SOURCE = (
    PRELUDE
    + "".join(map(_shuffle_kernel, SHUFFLES))
    + "".join(map(_vote_kernel, VOTES))
    + "".join(_redux_kernel(op, kind) for op, kind, _ in REDUCTIONS)
    + r"""
extern "C" __global__ void match_any(const u32* in, u32* to) {
  u32 result;
  asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(in[threadIdx.x]));
  to[threadIdx.x] = result;
}
extern "C" __global__ void match_all(const u32* in, u32* to) {
  u32 mask, same;
  asm volatile("{ .reg .pred p; match.all.sync.b32 %0|p, %2, 0xffffffff; selp.b32 %1, 1, 0, p; }"
               : "=r"(mask), "=r"(same) : "r"(in[threadIdx.x]));
  to[threadIdx.x] = mask ^ same << 7;
}
// halves of the warp apart: what is active, and a ballot of each half
extern "C" __global__ void apart(const u32* in, u32* to) {
  u32 mask = 0, ballot = 0, lane = threadIdx.x % 32;
  bool upper = in[threadIdx.x] & 1;
  u32 members = __ballot_sync(0xffffffff, upper);
  if (upper) {
    asm volatile("{ .reg .pred p; setp.gt.u32 p, %2, 12; vote.sync.ballot.b32 %0, p, %1; }"
                 : "=r"(ballot) : "r"(members), "r"(lane));
    asm volatile("activemask.b32 %0;" : "=r"(mask));
  } else {
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %2, 20; vote.sync.ballot.b32 %0, p, %1; }"
                 : "=r"(ballot) : "r"(~members), "r"(lane));
  }
  to[threadIdx.x] = ballot ^ (mask & ~members);
}
extern "C" __global__ void elected(u32* to) {
  u32 leader, mine;
  asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.b32 %1, 1, 0, p; }" : "=r"(leader), "=r"(mine));
  u32 leaders = __popc(__ballot_sync(0xffffffff, mine));
  u32 chosen = __ballot_sync(0xffffffff, mine);
  to[threadIdx.x] = leaders | (chosen == 1u << leader) << 8 | (mine == (threadIdx.x % 32 == leader)) << 9;
}
"""
)


def cases() -> Iterator[Case]:
    for shuffle in SHUFFLES:
        yield _shuffle(shuffle)
    for mode in VOTES:
        yield _vote(mode)
    for op, kind, reduce in REDUCTIONS:
        yield _redux(op, kind, reduce)
    yield _match_any()
    yield _match_all()
    yield _apart()
    yield _warp("elect", "elected", (out((WARPS, LANES)),), np.full((WARPS, LANES), 1 | 1 << 8 | 1 << 9, np.uint32))


def _warp(family: str, kernel: str, parameters: tuple[Parameter, ...], *expected: Array) -> Case:
    return Case(family, kernel, SOURCE, kernel, parameters, block=(WARPS * LANES, 1, 1), expected=expected)


def _shuffle(s: Shuffle) -> Case:
    rng = generator(s.kernel)
    values = rng.integers(0, 1 << 32, (WARPS, LANES), dtype=np.uint32)
    lanes = rng.integers(0, 40, (WARPS, LANES), dtype=np.uint32)
    lane, operand = np.arange(LANES), (lanes & 31).astype(np.int64)
    bound, segment = s.clamp & 31, s.clamp >> 8 & 31
    low, high = lane & segment, (lane & segment) | (bound & ~segment)
    source = {
        "idx": low | (operand & ~segment),
        "up": lane - operand,
        "down": lane + operand,
        "bfly": lane ^ operand,
    }[s.mode]
    inside = source >= high if s.mode == "up" else source <= high
    source = np.where(inside, source, lane).astype(np.int64)
    moved = np.take_along_axis(values, source, axis=1)
    parameters = (In(values), In(lanes), out((WARPS, LANES)), out((WARPS, LANES)))
    return _warp("shfl", s.kernel, parameters, moved, inside.astype(np.uint32))


def _flags() -> Array:
    flags = generator("flags").integers(0, 2, (WARPS, LANES), dtype=np.uint32)
    flags[0], flags[1], flags[2] = 0, 7, 0
    flags[2, 9] = 1
    return flags


def _spread(per_warp: Array) -> Array:
    return np.repeat(per_warp.astype(np.uint32)[:, None], LANES, axis=1)


def _ballots(flags: Array) -> Array:
    return np.array([sum(1 << i for i, x in enumerate(row) if x) for row in flags], dtype=np.uint32)


def _vote(mode: str) -> Case:
    flags = _flags()
    truth = flags != 0
    results = {
        "all": truth.all(axis=1),
        "any": truth.any(axis=1),
        "uni": truth.all(axis=1) | ~truth.any(axis=1),
        "ballot": _ballots(truth),
    }
    return _warp("vote", f"vote_{mode}", (In(flags), out((WARPS, LANES))), _spread(results[mode]))


def _redux(op: str, kind: str, reduce: Callable[[Array], Array]) -> Case:
    values = generator(op + kind).integers(0, 1 << 32, (WARPS, LANES), dtype=np.uint32)
    typed = values.view(np.int32) if kind == "s32" else values
    results = np.array([reduce(row) for row in typed]).astype(typed.dtype).view(np.uint32)
    return _warp("redux", f"redux_{op}_{kind}", (In(values), out((WARPS, LANES))), _spread(results))


def _match_any() -> Case:
    values = generator("match").integers(0, 5, (WARPS, LANES), dtype=np.uint32)
    expected = np.array([[_ballots((row == x)[None])[0] for x in row] for row in values], dtype=np.uint32)
    return _warp("match", "match_any", (In(values), out((WARPS, LANES))), expected)


def _match_all() -> Case:
    values = np.repeat(np.arange(WARPS, dtype=np.uint32)[:, None], LANES, axis=1)
    values[3, 17] = 99
    same = np.array([len(set(row.tolist())) == 1 for row in values])
    expected = _spread(np.where(same, 0xFFFFFFFF ^ 1 << 7, 0))
    return _warp("match", "match_all", (In(values), out((WARPS, LANES))), expected)


def _apart() -> Case:
    """Each side's ballot counts its own lanes; the active mask never holds a lane of the other side."""
    flags = _flags()
    upper, lane = (flags & 1).astype(bool), np.arange(LANES)
    ballots = np.where(upper, _ballots(upper & (lane > 12))[:, None], _ballots(~upper & (lane < 20))[:, None])
    return _warp("vote", "apart", (In(flags), out((WARPS, LANES))), ballots.astype(np.uint32))
