"""Blocks: batches of independent instructions give the very bits of one instruction at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen.sim import blocks

FLOATS, WORDS = 24, 16


def random_instruction(rng: random.Random) -> str:
    """One instruction of a kind that blocks may move or merge, or may not."""
    f = [f"%f{rng.randrange(FLOATS)}" for _ in range(4)]
    r = [f"%r{rng.randrange(20, 20 + WORDS)}" for _ in range(4)]
    p = f"%p{rng.randrange(1, 5)}"
    choices = [
        f"fma.rn.f32 {f[0]}, {f[1]}, {f[2]}, {f[3]};",
        f"mul.f32 {f[0]}, {f[1]}, {f[2]};",
        f"add.f32 {f[0]}, {f[1]}, 0f3F000000;",
        f"mov.f32 {f[0]}, {f[1]};",
        f"mov.b32 {r[0]}, {f[1]};",
        f"cvt.rn.bf16x2.f32 {r[0]}, {f[1]}, {f[2]};",
        f"selp.f32 {f[0]}, {f[1]}, {f[2]}, {p};",
        f"setp.lt.u32 {p}, {r[0]}, {r[1]};",
        f"add.u32 {r[0]}, {r[1]}, {r[2]};",
        f"@{p} xor.b32 {r[0]}, {r[1]}, {r[2]};",
        f"@!{p} mov.f32 {f[0]}, {f[1]};",
        f"ld.global.f32 {f[0]}, [%d20+{4 * rng.randrange(8)}];",
        f"st.global.f32 [%d20+{4 * rng.randrange(8)}], {f[1]};",
        f"shfl.sync.bfly.b32 {r[0]}|{p}, {r[1]}, 1, 31, -1;",
        f"min.s32 {r[0]}, {r[1]}, {r[2]};",
    ]
    return rng.choice(choices)


def program(seed: int) -> str:
    """Registers from memory, random instructions with runs of equal kinds, registers to memory."""
    rng = random.Random(seed)
    head = "mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 256; add.s64 %d20, %d1, %d2;"
    head += "".join(f"ld.global.f32 %f{i}, [%d20+{4 * i}];" for i in range(FLOATS))
    head += "".join(f"ld.global.u32 %r{20 + i}, [%d20+{4 * (FLOATS + i)}];" for i in range(WORDS))
    head += "".join(f"setp.gt.u32 %p{i}, %r{20 + i}, 1000;" for i in range(1, 5))
    body = []
    for _ in range(40):
        body += [random_instruction(rng) for _ in range(rng.randrange(6))]
        shift = rng.randrange(FLOATS)
        body += [f"fma.rn.f32 %f{i}, %f{(i + shift) % FLOATS}, %f{shift}, %f{i};" for i in range(rng.randrange(12))]
        body += [f"mov.b32 %r{20 + i}, %f{(i + shift) % FLOATS};" for i in range(rng.randrange(WORDS))]
    tail = "".join(f"st.global.f32 [%d20+{4 * i}], %f{i};" for i in range(FLOATS))
    tail += "".join(f"st.global.u32 [%d20+{4 * (FLOATS + i)}], %r{20 + i};" for i in range(WORDS))
    return kernel(head + "\n".join(body) + tail)


def result(seed: int) -> np.ndarray:
    out = np.random.default_rng(seed).standard_normal((32, 64)).astype(np.float32)
    Bench().run(program(seed), out)
    return out.view(np.uint32)


@pytest.mark.parametrize("seed", range(12))
def test_batches_do_not_change_a_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batched = result(seed)
    monkeypatch.setattr(blocks, "MIN_BATCH", 10**9)
    monkeypatch.setattr(blocks, "MIN_UFUNC_BATCH", 10**9)
    single = result(seed)
    same = (batched == single) | (np.isnan(batched.view(np.float32)) & np.isnan(single.view(np.float32)))
    assert same.all()


def test_batches_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = blocks._Writer.batch
    monkeypatch.setattr(
        blocks._Writer, "batch", lambda self, items: (made.append(len(items)), original(self, items))[1]
    )
    result(0)
    assert max(made) >= 8
