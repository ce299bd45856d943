"""What tcgen05.mma refuses, when it is bound or when it runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcgen05_kernels import Mma, mma_source, run_cuda, run_mma, scale_image
from test_tcgen05_mma import SCALED, bf16, dense, descriptor, operand

from gemmgen import sim


def base() -> Mma:
    rng = np.random.default_rng(14)
    (a, _), (b, _) = operand(rng, 128, 32, "e4m3"), operand(rng, 16, 32, "e4m3")
    mma = dense(SCALED, a, b, 1 << 23, 128, 16, 32)
    mma.a_scales = mma.b_scales = scale_image(np.full((128, 4), 127, np.uint8))
    return mma


def changed(**fields: object) -> Callable[[Mma], None]:
    return lambda mma: [setattr(mma, name, value) for name, value in fields.items()] and None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(b_descriptors=[8 * 32 >> 4 << 32 | 6 << 61]), "version"),
        (changed(a_descriptors=[1 << 46 | 1 << 52 | 6 << 61]), "leading-byte-offset mode"),
        (changed(a_descriptors=[1 << 46 | 1 << 61]), "32-byte atoms"),
        (changed(a_descriptors=[1 << 46 | 0x3FFF << 32 | 6 << 61]), "reaches shared byte"),
        (changed(idesc=[descriptor(128, 16, 1 << 23 | 3 << 7)]), "A format"),
        (changed(idesc=[descriptor(128, 0, 1 << 23)]), "N is 0"),
        (changed(idesc=[descriptor(64, 16, 1 << 23)]), "M is 64"),
        (changed(d_lane=16), "D names lane 16; it must be 0"),
    ],
)
def test_bad_descriptors_fault(change: Callable[[Mma], None], message: str) -> None:
    mma = base()
    change(mma)
    with pytest.raises(sim.Fault, match=message):
        run_mma(mma)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".kind::mxf8f6f4.block_scale", ".kind::i8"),
        (".kind::mxf8f6f4.block_scale", ".kind::mxf8f6f4.block_scale.scale_vec::4X"),
        (".kind::mxf8f6f4.block_scale", ".kind::mxf4nvf4.block_scale"),
        ("tcgen05.mma.cta_group::1", "tcgen05.mma.sp.cta_group::1"),
        ("tcgen05.mma.cta_group::1", "tcgen05.mma.ws.cta_group::1"),
        (".kind::mxf8f6f4.block_scale", ".kind::mxf8f6f4.block_scale.ashift"),
        (".32x128b.warpx4", ".4x256b"),
        (".32x128b.warpx4", ".32x128b"),
        (".32x128b.warpx4", ".32x128b.warpx4.b8x16.b4x16_p64"),
        (".32x32b.x8", ".32x32b.x4"),
        (".32x32b.x8.b32", ".red.32x32b.x8.b32"),
        ("tcgen05.mma", "tcgen05.shift"),
    ],
)
def test_unknown_forms_are_named(old: str, new: str) -> None:
    with pytest.raises(sim.UnknownInstruction):
        run_mma(base(), edit=(old, new))


def test_collector_hints_must_name_the_a_that_was_filled_in() -> None:
    rng = np.random.default_rng(15)
    a, b = rng.integers(-4, 5, (128, 32)).astype(float), rng.integers(-4, 5, (16, 32)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16.collector::a::fill", bf16(a), bf16(b), 0x490, 128, 16, 64)
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), a @ b.T)
    mma.opcode = mma.opcode.replace("fill", "use")
    with pytest.raises(sim.Fault, match="collector buffer does not hold this A"):
        run_mma(mma)


def test_scale_ids_in_the_top_address_bits_must_agree() -> None:
    """CUTLASS carries the id in bits 30-31 of the scale's address besides the instruction descriptor."""
    mma = base()
    text = mma_source(mma).replace('"r"(tmem + SFA)', '"r"(tmem + SFA + (2u << 30))')
    mma.idesc = [mma.idesc[0] | 2 << 29]
    out = np.zeros((128, 16), np.uint32)
    steps = np.array([[mma.a_descriptors[0], mma.b_descriptors[0], mma.idesc[0]]], np.uint64)
    images = [mma.a_image, mma.b_image, mma.a_scales, mma.b_scales]
    run_cuda(text, *images, steps, out, 256, 32, 32, 32, 0, shared_bytes=8192)
    assert np.isfinite(out.view(np.float32)).all()
    steps[0, 2] ^= 3 << 29
    with pytest.raises(sim.Fault, match="carries id 2"):
        run_cuda(text, *images, steps, out, 256, 32, 32, 32, 0, shared_bytes=8192)


def test_unequal_copies_of_a_scale_fault() -> None:
    mma = base()
    codes = np.random.default_rng(16).integers(100, 140, 512).astype(np.uint8)
    mma.a_scales = mma.b_scales = codes
    with pytest.raises(sim.Fault, match="different scales of A"):
        run_mma(mma, edit=(".32x128b.warpx4", ".128x128b"))
