"""mbarrier sequences whose waits are observed at every step, and named barriers between warps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import PRELUDE, Case, In, Out, generator, out

SOURCE = PRELUDE + r"""
DEVICE u32 barrier_test(u32 bar, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done;
}
DEVICE void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE void arrive_many(u32 bar, u32 n) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
DEVICE void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void load(u32 bar, const u32* from, u32 bytes, u32 offset) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(address(smem) + offset), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// both parities by both instructions, as four bits
DEVICE u32 seen(u32 bar) {
  return barrier_test(bar, 0) | barrier_test(bar, 1) << 1 | barrier_try(bar, 0) << 2 | barrier_try(bar, 1) << 3;
}

extern "C" __global__ void arrivals(u32* to) {
  u32 bar = address(smem), n = 0;
  barrier_init(bar, 3);
  to[n++] = seen(bar);
  for (u32 i = 0; i < 10; ++i) { arrive(bar); to[n++] = seen(bar); }
}
extern "C" __global__ void counted_arrivals(u32* to) {
  u32 bar = address(smem), n = 0;
  barrier_init(bar, 5);
  arrive_many(bar, 2); to[n++] = seen(bar);
  arrive_many(bar, 3); to[n++] = seen(bar);
  arrive(bar); to[n++] = seen(bar);
  arrive_many(bar, 4); to[n++] = seen(bar);
}
extern "C" __global__ void transactions(const u32* from, u32* to) {
  u32 bar = address(smem), n = 0;
  barrier_init(bar, 1);
  barrier_expect(bar, 512); to[n++] = seen(bar);            // armed, no byte yet
  load(bar, from, 256, 1024); load(bar, from, 256, 1280);
  barrier_wait(bar, 0); to[n++] = seen(bar);
  expect(bar, 64); to[n++] = seen(bar);                     // bytes but no arrival
  load(bar, from, 64, 1536);
  arrive(bar);
  barrier_wait(bar, 1); to[n++] = seen(bar);
  load(bar, from, 128, 1664);                                   // bytes before they are expected
  barrier_expect(bar, 128);
  barrier_wait(bar, 0); to[n++] = seen(bar);
  for (u32 i = 0; i < 16; ++i) to[n++] = ((u32*)smem)[256 + i];
}
extern "C" __global__ void dropped(u32* to) {
  u32 bar = address(smem), n = 0;
  barrier_init(bar, 3);
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); to[n++] = seen(bar);
  arrive_many(bar, 2); to[n++] = seen(bar);                 // phase 0 ends; two arrivals a phase from here
  arrive(bar); to[n++] = seen(bar);
  arrive(bar); to[n++] = seen(bar);
}
extern "C" __global__ void by_state(u32* to) {
  u32 bar = address(smem), n = 0, done;
  barrier_init(bar, 2);
  for (u32 i = 0; i < 4; ++i) {
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "l"(state) : "memory");
    to[n++] = done;
  }
}
extern "C" __global__ void all_threads(u32* to) {             // 64 threads, eight phases, data handed on in each
  u32 bar = address(smem);
  if (threadIdx.x == 0) barrier_init(bar, 64);
  __syncthreads();
  u32* data = (u32*)smem + 16, x = threadIdx.x;
  for (u32 phase = 0; phase < 8; ++phase) {
    data[64 * (phase % 2) + threadIdx.x] = x;
    arrive(bar);
    barrier_wait(bar, phase % 2);
    x = 3 * x + data[64 * (phase % 2) + (threadIdx.x + 40) % 64];
  }
  to[threadIdx.x] = x;
}

// two warps produce, two consume; one barrier each way
extern "C" __global__ void named(const u32* from, u32* to) {
  u32 lane = threadIdx.x % 64;
  u32* slot = (u32*)smem;
  for (u32 i = 0; i < 4; ++i) {
    if (threadIdx.x < 64) {
      if (i > 0) asm volatile("barrier.cta.sync 2, 128;" ::: "memory");
      slot[lane] = from[64 * i + lane];
      asm volatile("barrier.cta.arrive 1, 128;" ::: "memory");
    } else {
      asm volatile("barrier.cta.sync 1, 128;" ::: "memory");
      to[64 * i + lane] = slot[63 - lane] + i;
      if (i < 3) asm volatile("barrier.cta.arrive 2, 128;" ::: "memory");
    }
  }
}
extern "C" __global__ void reductions(const u32* from, u32* to) {
  u32 x = from[threadIdx.x], count, all, any;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.popc.u32 %0, 3, 128, p; }"
               : "=r"(count) : "r"(x) : "memory");
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.and.pred q, 4, 128, p; selp.b32 %0, 1, 0, q; }"
               : "=r"(all) : "r"(x) : "memory");
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, 5, 128, p; selp.b32 %0, 1, 0, q; }"
               : "=r"(any) : "r"(x) : "memory");
  to[threadIdx.x] = count | all << 16 | any << 24;
}
"""


def cases() -> Iterator[Case]:
    yield _sequence("arrivals", _phases_by_arrivals())
    # observed as: bit parity set when the phase of that parity has completed, by test_wait and by try_wait
    yield _sequence("counted_arrivals", [0b1010, 0b0101, 0b0101, 0b1010])
    yield _sequence("dropped", [0b1010, 0b0101, 0b0101, 0b1010])
    yield _sequence("by_state", [0, 1, 0, 1])
    data = generator("transactions").integers(0, 1 << 32, 128, dtype=np.uint32)
    observed = np.array([0b1010, 0b0101, 0b0101, 0b1010, 0b0101], np.uint32)
    expected = (np.concatenate([observed, data[:16]]),)
    parameters = (In(data), out(21))
    yield Case(
        "mbarrier",
        "transactions",
        SOURCE,
        "transactions",
        parameters,
        (1, 1, 1),
        (1, 1, 1),
        shared_bytes=2048,
        expected=expected,
    )
    yield Case(
        "mbarrier",
        "all_threads",
        SOURCE,
        "all_threads",
        (out(64),),
        block=(64, 1, 1),
        shared_bytes=1024,
        expected=(_handed_on(),),
    )
    yield _named()
    for name, values in (("none", [0]), ("all", [1]), ("some", [0, 5, 0, 1, 1]), ("one", [0] * 127 + [9])):
        yield _reductions(name, np.resize(np.array(values, np.uint32), 128))


def _sequence(kernel: str, observed: list[int]) -> Case:
    data = Out(np.zeros(16, np.uint32))
    expected = np.zeros(16, np.uint32)
    expected[: len(observed)] = observed
    return Case("mbarrier", kernel, SOURCE, kernel, (data,), block=(1, 1, 1), shared_bytes=64, expected=(expected,))


def _phases_by_arrivals() -> list[int]:
    """Three arrivals a phase: before phase 0 completes the preceding phase, of parity 1, counts as complete."""
    return [0b1010 if arrivals // 3 % 2 == 0 else 0b0101 for arrivals in range(11)]


def _handed_on() -> np.ndarray:
    x = np.arange(64, dtype=np.uint32)
    for _ in range(8):
        x = 3 * x + np.roll(x, -40)
    return x


def _named() -> Case:
    data = generator("named").integers(0, 1 << 31, (4, 64), dtype=np.uint32)
    expected = data[:, ::-1] + np.arange(4, dtype=np.uint32)[:, None]
    parameters = (In(data), out((4, 64)))
    return Case(
        "named barriers",
        "hand over",
        SOURCE,
        "named",
        parameters,
        block=(128, 1, 1),
        shared_bytes=256,
        expected=(expected,),
    )


def _reductions(name: str, values: np.ndarray) -> Case:
    flags = values != 0
    word = int(flags.sum()) | int(flags.all()) << 16 | int(flags.any()) << 24
    parameters = (In(values), out(128))
    expected = (np.full(128, word, np.uint32),)
    return Case(
        "named barriers",
        f"reductions over {name}",
        SOURCE,
        "reductions",
        parameters,
        block=(128, 1, 1),
        expected=expected,
    )
