"""The layout transforms of scales as operators of ``torch.library``, so that compilers see one node and no content.

Knows which way a call takes and nothing of layouts; plain calls go straight to ``gemmgen.ops.quantise``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from gemmgen.ops import library, quantise
from gemmgen.ops.mk_alignment import stated_or_set
from gemmgen.ops.quantise.k_grouped import host_sizes
from gemmgen.ops.quantise.required import family_of
from gemmgen.runtime.architectures import ArchitectureLike

_constant_family = torch.compiler.assume_constant_result(family_of)  # a compiled graph is for one device


@wraps(quantise.get_mn_major_tma_aligned_tensor)
def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    if library.is_plain((sf,)):
        return quantise.get_mn_major_tma_aligned_tensor(sf)
    return _aligned(sf)


@wraps(quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor)
def get_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor, psum_layout: Tensor | None = None, *, mk_alignment: int | None = None
) -> Tensor:
    if library.is_plain(_present(sf, psum_layout)):
        return quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, psum_layout, mk_alignment=mk_alignment)
    return _packed(sf, psum_layout, mk_alignment=_kept(mk_alignment, psum_layout is not None))


@wraps(quantise.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor)
def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor,
    grouped_layout: Tensor,
    ks_cpu: Sequence[int] | None,
    gran_k: int = 128,
    k_alignment: int | None = None,
    use_psum_layout: bool = False,
) -> Tensor:
    if library.is_plain((sf, grouped_layout)):
        return quantise.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
            sf, grouped_layout, ks_cpu, gran_k, k_alignment, use_psum_layout
        )
    alignment = _kept(k_alignment, use_psum_layout)
    return _k_grouped(sf, grouped_layout, host_sizes(ks_cpu), gran_k, alignment, use_psum_layout)


@wraps(quantise.transform_sf_into_required_layout)
def transform_sf_into_required_layout(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int] | None = None,
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Tensor | None = None,
    *,
    arch: ArchitectureLike | None = None,
    mk_alignment: int | None = None,
) -> Tensor:
    arguments = (sf, mn, k, recipe, num_groups, is_sfa, disable_ue8m0_cast, psum_layout)
    if library.is_plain(_present(sf, psum_layout)):
        return quantise.transform_sf_into_required_layout(*arguments, arch=arch, mk_alignment=mk_alignment)
    family = _constant_family(sf.device, arch)
    return _transformed(*arguments, arch=family, mk_alignment=_kept(mk_alignment, psum_layout is not None))


def _kept(alignment: int | None, aligned: bool) -> int | None:
    """The alignment that a compiled call keeps: what it is while it is traced, where groups are aligned at all."""
    return stated_or_set(alignment) if aligned else alignment


def _present(*tensors: Tensor | None) -> list[Any]:
    return [tensor for tensor in tensors if tensor is not None]


# ------------------------------------------------------------------------------------------------- registration


def _owned(result: Tensor, sf: Tensor) -> Tensor:
    """An operator returns nothing of what it was given: a copy of what lies right already."""
    if not torch._C._is_alias_of(result, sf):
        return result
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device).copy_(result)


def _aligned_kernel(sf: Tensor) -> Tensor:
    return _owned(quantise.get_mn_major_tma_aligned_tensor(sf), sf)


def _packed_kernel(sf: Tensor, psum_layout: Tensor | None = None, *, mk_alignment: int | None = None) -> Tensor:
    return quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, psum_layout, mk_alignment=mk_alignment)


def _transformed_kernel(sf: Tensor, *arguments: Any, **options: Any) -> Tensor:
    return _owned(quantise.transform_sf_into_required_layout(sf, *arguments, **options), sf)


def _define(name: str, parameters: str, kernel: Any) -> Any:
    """What a kernel does to shapes, types and strides is what it does to fake tensors."""
    return library.define(name, f"(Tensor sf{parameters}) -> Tensor", kernel, kernel)


_aligned = _define("get_mn_major_tma_aligned_tensor", "", _aligned_kernel)
_packed = _define(
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    ", Tensor? psum_layout=None, *, SymInt? mk_alignment=None",
    _packed_kernel,
)
_transformed = _define(
    "transform_sf_into_required_layout",
    ", SymInt mn, SymInt k, SymInt[]? recipe=None, SymInt? num_groups=None, bool? is_sfa=None, "
    "bool disable_ue8m0_cast=False, Tensor? psum_layout=None, *, str? arch=None, SymInt? mk_alignment=None",
    _transformed_kernel,
)
_k_grouped = _define(
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    ", Tensor grouped_layout, SymInt[]? ks_cpu, SymInt gran_k=128, SymInt? k_alignment=None, "
    "bool use_psum_layout=False",
    quantise.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
)

__all__ = [
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "transform_sf_into_required_layout",
]
