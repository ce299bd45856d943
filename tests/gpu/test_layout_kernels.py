"""Layout kernels on a GPU: every byte against torch, odd addresses, large matrices, graphs, and bytes a second.

They use common instructions alone, so that whichever GPU is there runs the text that others get.
"""

from __future__ import annotations

import pytest
import torch

import gemmgen
from gemmgen import catalog, ops
from gemmgen.commands.relayout import expected_memory, memory_of, random_layout_operands
from gemmgen.ir import Arch, DType, LayoutSpec
from gemmgen.ops import relayout
from gemmgen.ops.quantise import unpack_fp4
from gemmgen.runtime.architectures import resolve

CUDA = "cuda"
ARCH = Arch(resolve(torch.cuda.get_device_capability()).family)
SPECS = (
    *(catalog.to_k_major(ARCH, dtype) for dtype in (DType.E2M1, DType.E4M3, DType.BF16)),
    catalog.to_m_major(ARCH, DType.UE8M0X4),
    catalog.pack_bytes(ARCH),
    *(catalog.pack_ue8m0(ARCH, rows) for rows in (1, 128)),
)
SHAPES = ((2, 2), (16, 32), (30, 258), (258, 30), (300, 96), (1024, 1024), (4098, 514), (8192, 7168))


def there(tensor: torch.Tensor) -> torch.Tensor:
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CUDA)
    memory_of(moved)[:] = memory_of(tensor)[: memory_of(moved).numel()].to(CUDA)
    return moved


@pytest.mark.parametrize("m, k", SHAPES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_byte_of_the_destination_and_none_beside(spec: LayoutSpec, m: int, k: int) -> None:
    operands = random_layout_operands(spec, {"m": m, "k": k}, seed=m + k)
    expected = expected_memory(spec, operands)
    room = memory_of(operands["destination"]).to(CUDA)
    d = operands["destination"]
    destination = torch.empty(0, dtype=d.dtype, device=CUDA).set_(room.untyped_storage(), 0, d.shape, d.stride())
    gemmgen.op(spec)(source=there(operands["source"]), destination=destination)
    assert torch.equal(room.cpu(), expected)


@pytest.mark.parametrize("shift", [0, 1, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 2, 16])
def test_any_address_and_pitch_of_the_source(shift: int, extra: int) -> None:
    m, k = 1030, 517
    room = torch.randint(0, 256, (k * (m + extra) + shift,), dtype=torch.uint8, device=CUDA)
    source = room[shift:].as_strided((m, k), (1, m + extra)).view(torch.float8_e4m3fn)
    found = relayout.to_k_major(source, DType.E4M3, ARCH)
    assert torch.equal(found.view(torch.uint8), source.view(torch.uint8))


def test_4_bit_numbers_there_and_back() -> None:
    packed = torch.randint(-128, 128, (3000, 2050), dtype=torch.int8, device=CUDA)  # [k, m / 2]
    found = relayout.to_k_major(packed.mT, DType.E2M1, ARCH)
    assert torch.equal(unpack_fp4(found), unpack_fp4(packed).mT)
    again = relayout.to_k_major(found.mT, DType.E2M1, ARCH)
    assert torch.equal(again, packed)


def test_more_than_4_gib_of_offsets() -> None:
    """Offsets that 32 bits do not hold: the last lines of a matrix of 4.5 GB."""
    m, k = 2**16 + 16, 2**16 + 2**13
    source = torch.zeros((k, m), dtype=torch.uint8, device=CUDA)
    source[-1, -40:] = torch.arange(40, device=CUDA, dtype=torch.uint8)
    source[:40, -1] = torch.arange(40, device=CUDA, dtype=torch.uint8)
    found = relayout.to_k_major(source.view(torch.float8_e4m3fn).mT, DType.E4M3, ARCH).view(torch.uint8)
    assert torch.equal(found[-40:], source[:, -40:].mT)
    assert torch.equal(found[-1], source[:, -1])


@pytest.mark.parametrize("rows", [1, 128])
def test_packed_scales_equal_those_of_the_reference(rows: int) -> None:
    mn, k = 4097, 57
    exponents = torch.randint(0, 256, (-(-mn // rows), k), dtype=torch.int32, device=CUDA)
    sf = (exponents << 23).view(torch.float32)
    expected = ops.transform_sf_into_required_layout(sf, mn, 128 * k, (rows, 128), arch="sm100")
    found = relayout.pack_ue8m0(sf, mn, rows, ARCH)
    assert found.stride() == expected.stride() and torch.equal(found, expected)
    assert bool((memory_of(found).view(torch.int32).view(found.shape[1], -1)[:, mn:] == 0).all())


def test_a_captured_graph_replays() -> None:
    source = torch.randint(0, 0x7F, (512, 768), dtype=torch.uint8, device=CUDA)
    relayout.to_k_major(source.view(torch.float8_e4m3fn).mT, DType.E4M3, ARCH)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = relayout.to_k_major(source.view(torch.float8_e4m3fn).mT, DType.E4M3, ARCH)
    source.random_(0, 0x7F)
    graph.replay()
    assert torch.equal(found.view(torch.uint8), source.mT)
