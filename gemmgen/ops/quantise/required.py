"""Scales as users have them, brought into the layout that the kernels of an architecture read.

Metadata alone decides: type, shape, recipe and architecture; nothing is raised or rounded for the content of scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemmgen.ops.quantise.blocks import Gran, ceil_div, check_scale_shape, spread
from gemmgen.ops.quantise.layout import (
    BYTE_TYPES,
    from_blocked_128x4,
    get_mn_major_tma_aligned_tensor,
    lies_mn_major,
    mn_major,
    packed_mn_major,
)
from gemmgen.ops.quantise.ue8m0 import ACCEPTED, ue8m0_bytes
from gemmgen.ops.whole_numbers import whole_numbers
from gemmgen.runtime.architectures import ArchitectureLike, resolve
from gemmgen.runtime.simulation import current_simulation

_GRAN_K = {
    torch.float32: (32, 128),
    torch.float8_e8m0fnu: (32, 128),
    torch.float8_e4m3fn: (16,),
    torch.int32: (16, 32, 128),
}
"""Elements along k that share a scale, by the type of scales that sm100 and sm120 read."""
_SM90_GRANS = ((1, 128), (128, 128))


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int] | None = None,
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: torch.Tensor | None = None,
    *,
    arch: ArchitectureLike | None = None,
    mk_alignment: int | None = None,
) -> torch.Tensor:
    """Scales of a [mn, k] operand as the kernels read them, from any form that types and shapes tell apart.

    sm90: fp32; one per row and 128 of k get strides (1, align(mn, 4)), one per 128 x 128 stay as they are.
    sm100, sm120: int32 [.., mn, ceil(k / gran_k / 4)], four bytes a word, strides (1, align(mn, 4)); one row each,
        blocks of rows repeated; bytes and rows that pad are 0. What lies like that already is returned itself.

    sf: fp32, ``float8_e8m0fnu``, ``float8_e4m3fn`` for UE4M3 scales of 16, packed int32; or one-byte scales of one
        dimension less, in torch's 128x4 blocks. For sm100 and sm120, fp32 scales that are no powers of two become NaN:
        ``check_ue8m0`` finds them, ``requantise_to_ue8m0`` re-quantises the data.
    recipe: (gran_mn, gran_k), or (gran_m of a, gran_n of b, gran_k) with ``is_sfa``; (1, 128, 128) for fp32 and
        (1, 1, 128) for int32 when left out.
    num_groups: the first of three dimensions of ``sf``.
    disable_ue8m0_cast: keep fp32; sm90 does anyway, the others cannot.
    psum_layout, mk_alignment: see ``get_mn_major_tma_aligned_packed_ue8m0_tensor``.
    arch: of the kernels; by default that of sf's device, or the one that is simulated.
    """
    family = family_of(sf.device, arch)
    gran = _granularity(sf, recipe, is_sfa)
    _check_type(sf, gran, family, disable_ue8m0_cast)
    sf = _unblocked(sf, mn, k, gran, num_groups)
    blocks = ceil_div(k, gran[1])
    columns = ceil_div(blocks, 4) if sf.dtype == torch.int32 else blocks
    batch = () if num_groups is None else (num_groups,)
    check_scale_shape(sf, (*batch, ceil_div(mn, gran[0]), columns), gran)
    if family == "sm90":
        return sf if gran[0] != 1 else get_mn_major_tma_aligned_tensor(sf)
    if sf.dtype == torch.int32 and gran[0] == 1 and psum_layout is None and lies_mn_major(sf):
        return mn_major(sf)
    codes = sf.view(torch.uint8) if sf.dtype == torch.float8_e4m3fn else ue8m0_bytes(sf)
    codes = spread(codes[..., :blocks], (gran[0], 1), mn, blocks)
    return packed_mn_major(codes, psum_layout, mk_alignment)


def family_of(device: torch.device, arch: ArchitectureLike | None) -> str:
    """The family of the architecture that is named, else of a GPU, else of what is simulated."""
    if arch is not None:
        return resolve(arch).family
    if device.type == "cuda":
        return resolve(tuple(torch.cuda.get_device_capability(device))).family
    simulation = current_simulation()
    if simulation is None:
        raise ValueError(
            f"arch: is missing and sf is on {device}, which has none; pass arch='sm90', 'sm100' or 'sm120', or call "
            'this inside `with gemmgen.simulate("sm100"):`'
        )
    return simulation.arch.family


def _granularity(sf: torch.Tensor, recipe: Sequence[int] | None, is_sfa: bool | None) -> Gran:
    if recipe is None:
        if sf.dtype not in (torch.float32, torch.int32):
            raise ValueError(f"recipe: is missing; scales of {sf.dtype} have no default; pass (gran_mn, gran_k)")
        recipe = (1, 1, 128) if sf.dtype == torch.int32 else (1, 128, 128)
    found = whole_numbers(recipe)
    if found is None or len(found) not in (2, 3) or min(found) < 1:
        raise ValueError(f"recipe: is {recipe!r}; must be (gran_mn, gran_k) or (gran_m, gran_n, gran_k)")
    recipe = found
    if len(recipe) == 3 and is_sfa is None and recipe[0] != recipe[1]:
        raise ValueError(
            f"is_sfa: is missing; recipe {tuple(recipe)} has one granularity for a and one for b; pass is_sfa=True "
            f"for the scales of a, False for those of b, or recipe=({recipe[1]}, {recipe[2]})"
        )
    return (recipe[0] if len(recipe) == 2 or is_sfa else recipe[1], recipe[-1])


def _check_type(sf: torch.Tensor, gran: Gran, family: str, disable_ue8m0_cast: bool) -> None:
    if sf.dtype not in _GRAN_K:
        raise TypeError(f"sf: dtype is {sf.dtype}; {ACCEPTED}")
    if family == "sm90":
        _check_sm90(sf, gran)
        return
    if disable_ue8m0_cast and sf.dtype == torch.float32:
        raise ValueError(
            f"disable_ue8m0_cast: is True, but the tensor cores of {family} multiply with powers of two only; leave it "
            "out and pass scales that are powers of two; requantise_to_ue8m0 makes them"
        )
    if gran[1] not in _GRAN_K[sf.dtype]:
        raise ValueError(
            f"recipe: gran_k is {gran[1]}; scales of {sf.dtype} on {family} stand for "
            f"{' or '.join(map(str, _GRAN_K[sf.dtype]))} elements along k"
        )


def _check_sm90(sf: torch.Tensor, gran: Gran) -> None:
    if sf.dtype != torch.float32:
        raise TypeError(
            f"sf: dtype is {sf.dtype}; sm90 multiplies with torch.float32 scales; UE8M0 bytes and packed words belong "
            "to sm100 and sm120; decode_ue8m0 and unpack_ue8m0_from_int give fp32"
        )
    if gran not in _SM90_GRANS:
        raise ValueError(f"recipe: {gran} is not supported on sm90; use one of {', '.join(map(str, _SM90_GRANS))}")


def _unblocked(sf: torch.Tensor, mn: int, k: int, gran: Gran, num_groups: int | None) -> torch.Tensor:
    """One-byte scales of one dimension less are in 128x4 blocks; the rank decides, so nothing is guessed."""
    if sf.dtype not in BYTE_TYPES or sf.dim() != (1 if num_groups is None else 2):
        return sf
    return from_blocked_128x4(sf, ceil_div(mn, gran[0]), ceil_div(k, gran[1]))
