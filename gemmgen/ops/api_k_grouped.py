"""Products of groups of k, as users call them: weight gradients of experts.

Knows argument conventions; what fits together is judged in ``k_grouped``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemmgen.ops import k_grouped, library
from gemmgen.ops.call_arguments import Pair, Recipe, check_compiled_dims, check_tensors, pair
from gemmgen.ops.groups import check_flags, looks_at_groups
from gemmgen.ops.k_grouped_scaled import STEP
from gemmgen.ops.k_selection import TN, KSplit
from gemmgen.ops.mk_alignment import get_mk_alignment_for_contiguous_layout
from gemmgen.ops.quantise.k_grouped import host_sizes
from gemmgen.ops.scaled_call import check_types
from gemmgen.ops.whole_numbers import whole_numbers
from gemmgen.runtime.errors import DeviceError

SM90_RECIPE = (1, 1, 128)
RECIPES = ((1, 1, 32), (1, 1, 128))


def k_grouped_bf16_gemm_tn_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    ks_cpu: Sequence[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """``d[g] = a_g^T . b_g (+ c[g])`` for every group's own rows of bf16 ``a`` [k, m] and ``b`` [k, n], summed in fp32.

    d: bf16 or fp32 [groups, m, n] to write to; returned. A group without rows has c, or zeros.
    ks_cpu: rows of each group, on the host, checked against the shapes; None or [] where nobody knows them.
    grouped_layout: int32 [groups] on the device: rows of each group, one right behind the other.
    use_psum_layout: grouped_layout has the row behind each group's last; groups start at the next multiple of
        ``get_mk_alignment_for_contiguous_layout()``, and rows between them may hold anything.
    c: added, of d's type and shape; may be d itself.
    compiled_dims: accepted for compatibility; extents are run-time values.
    """
    check_compiled_dims(compiled_dims)
    check_tensors(a=a, b=b, c=c, d=d, grouped_layout=grouped_layout)
    k_grouped.check_matrices(a=a, b=b)
    split = split_of(use_psum_layout)
    check_ks(host_sizes(ks_cpu), d, a.shape[0], split)
    check_layout(grouped_layout, d, a.shape[0], split)
    run = (
        library.k_grouped_bf16
        if library.is_direct(_present(a, b, grouped_layout, c, d))
        else library.k_grouped_bf16_gemm
    )
    run(a, b, grouped_layout, c, split.by, split.alignment, d)
    return d


def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    ks_cpu: Sequence[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = SM90_RECIPE,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """``d[g] = a_g . b_g^T (+ c[g])`` for e4m3 factors of every group that are matrices of their own; sm90.

    a: pair of flat data, for every group [m, k] with k contiguous, one behind the other, and fp32 scales [m, k/128] or
        [k/128, m], k being that of all groups; where m is k/128, they are ordered as those of b. Scales of which
        neither axis is contiguous are copied first.
    b: likewise with n.
    d: bf16 or fp32 [groups, m, n] to write to; returned. A group without any of k has c, or zeros.
    ks_cpu: k of each group, multiples of 128, on the host, checked against the shapes; None or [] where nobody knows.
    grouped_layout: int32 [groups] on the device, k of each group.
    c: added, of d's type and shape; may be d itself.
    recipe: (1, 1, 128), a scale for 128 of k of each row.
    compiled_dims: accepted for compatibility; extents are run-time values.
    use_psum_layout: False; groups lie right behind one another.
    """
    (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
    check_compiled_dims(compiled_dims)
    check_tensors(a=a_data, sfa=sfa, b=b_data, sfb=sfb, c=c, d=d, grouped_layout=grouped_layout)
    if recipe is not None and whole_numbers(recipe) != SM90_RECIPE:
        raise ValueError(f"recipe: is {recipe!r}; must be {SM90_RECIPE}, a scale for 128 of k of each row of a and b")
    check_flags(use_psum_layout=use_psum_layout)
    if use_psum_layout:
        raise ValueError("use_psum_layout: is True; factors lie group by group without gaps, so pass k of each group")
    if d is not None and d.dim() == 3 and [each.dim() for each in (a_data, sfa, b_data, sfb)] == [1, 2, 1, 2]:
        sfa, sfb = k_grouped.blocks_first(a_data, sfa, b_data, sfb, d.shape[1], d.shape[2])
    k_grouped.check_matrices(sfa=sfa, sfb=sfb)
    check_ks(host_sizes(ks_cpu), d, sfa.shape[0] * k_grouped.BLOCK, k_grouped.APART, k_grouped.BLOCK)
    check_layout(grouped_layout, d, sfa.shape[0] * k_grouped.BLOCK, k_grouped.APART, k_grouped.BLOCK)
    direct = library.is_direct(_present(a_data, sfa, b_data, sfb, grouped_layout, c, d))
    run = library.k_grouped_fp8_apart if direct else library.k_grouped_fp8_apart_gemm
    run(a_data, sfa, b_data, sfb, grouped_layout, c, d)
    return d


def k_grouped_fp8_gemm_tn_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    ks_cpu: Sequence[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = SM90_RECIPE,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """``d[g] = (a_g * sfa_g)^T . (b_g * sfb_g) (+ c[g])`` for every group's own rows of e4m3 factors; sm100 and sm120.

    a: pair of data [k, m] and power-of-two scales, for every group one for 32 or 128 of its k, rounded up: fp32 or
        ``float8_e8m0fnu`` [scales, m], or int32 words of four [words, m], of which every group begins a new one.
    b: likewise [k, n].
    d: bf16 or fp32 [groups, m, n] to write to; returned. A group without rows has c, or zeros.
    ks_cpu: rows of each group, multiples of 32, on the host, checked against the shapes; None or [] where nobody knows.
        With use_psum_layout they may be rounded up to the alignment, if a and b have as many; scales never are.
    grouped_layout: int32 [groups] on the device: rows of each group, one right behind the other.
    c: added, of d's type and shape; may be d itself.
    recipe: (1, 1, 128) or (1, 1, 32), the last number being the rows that share a scale.
    compiled_dims: accepted for compatibility; extents are run-time values.
    use_psum_layout: grouped_layout has the row behind each group's last; groups start at the next multiple of
        ``get_mk_alignment_for_contiguous_layout()``, and rows between them may hold anything.
    """
    (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
    check_compiled_dims(compiled_dims)
    check_tensors(a=a_data, sfa=sfa, b=b_data, sfb=sfb, c=c, d=d, grouped_layout=grouped_layout)
    stated = SM90_RECIPE if recipe is None else whole_numbers(recipe)
    if stated not in RECIPES:
        raise ValueError(f"recipe: is {recipe!r}; must be {' or '.join(map(str, RECIPES))}")
    check_types(TN, a_data, b_data, (torch.float8_e4m3fn,))
    k_grouped.check_matrices(a=a_data, b=b_data, sfa=sfa, sfb=sfb)
    split, ks = split_of(use_psum_layout), host_sizes(ks_cpu)
    check_ks(ks, d, a_data.shape[0], split, STEP)
    check_layout(grouped_layout, d, a_data.shape[0], split, STEP)
    direct = library.is_direct(_present(a_data, sfa, b_data, sfb, grouped_layout, c, d))
    run = library.k_grouped_scaled_gemm_run if direct else library.k_grouped_scaled_gemm
    run(a_data, sfa, b_data, sfb, grouped_layout, c, ks, stated[2], split.by, split.alignment, d)
    return d


def _present(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def split_of(use_psum_layout: bool) -> KSplit:
    """Where groups begin: right behind one another, or where the process's alignment says."""
    check_flags(use_psum_layout=use_psum_layout)
    return KSplit("ends", get_mk_alignment_for_contiguous_layout()) if use_psum_layout else KSplit("counts")


def check_layout(layout: torch.Tensor, d: torch.Tensor, k: int, split: KSplit, unit: int = 1) -> None:
    """Refuse a grouped_layout of another type, place or length, and wrong numbers in it where those are looked at."""
    name = "grouped_layout"
    if layout.dtype != torch.int32:
        raise TypeError(f"{name}: dtype is {layout.dtype}; must be torch.int32; pass {name}.to(torch.int32)")
    if layout.device != d.device:
        raise DeviceError(
            f"{name}: is on {layout.device}, but d is on {d.device}; kernels read it there, so pass "
            f"{name}.to({str(d.device)!r})"
        )
    if layout.dim() != 1:
        raise ValueError(f"{name}: has {layout.dim()} dimensions; must be [groups], a number for each group")
    if layout.shape[0] != d.shape[0]:
        raise ValueError(f"{name}: has {layout.shape[0]} numbers, but d has {d.shape[0]} groups; pass one for each")
    if layout.stride(0) != 1 and layout.shape[0] > 1:
        raise ValueError(f"{name}: stride is {layout.stride(0)}; kernels read neighbours, so pass {name}.contiguous()")
    if not torch.compiler.is_compiling() and looks_at_groups(layout):
        check_numbers(layout.tolist(), k, split, unit)


def check_numbers(numbers: list[int], k: int, split: KSplit, unit: int) -> None:
    """Refuse numbers that break the layout's rules; without it they are taken as they are, and kernels stay inside."""
    end = 0
    for group, number in enumerate(numbers):
        start = -(-end // split.alignment) * split.alignment
        count = number - start if split.by == "ends" else number
        if count < 0 and not (split.by == "ends" and number == end):
            raise ValueError(f"grouped_layout: group {group} has {count} of k; groups have 0 or more")
        if count > 0 and count % unit:
            raise ValueError(f"grouped_layout: group {group} has {count} of k; must be a multiple of {unit}")
        end = max(end, start + count)
    if end > k:
        raise ValueError(f"grouped_layout: groups end at {end}, but a has {k} of k; pass the sizes that a has")


def check_ks(ks: list[int], d: torch.Tensor, k: int, split: KSplit, unit: int = 1) -> None:
    """Refuse a d without groups and host sizes that are not theirs; what lies on the device is not looked at."""
    if d is None:
        raise TypeError("d: is a NoneType; must be a torch.Tensor to write to, such as torch.empty(groups, m, n)")
    if d.dim() != 3:
        raise ValueError(f"d: has {d.dim()} dimensions; must be [groups, m, n], a matrix for each group")
    if not ks:
        return
    if len(ks) != d.shape[0]:
        raise ValueError(
            f"ks_cpu: has {len(ks)} sizes, but d has {d.shape[0]} groups; pass one for each group, or None"
        )
    end = 0
    for group, count in enumerate(ks):
        if count < 0 or count % unit:
            rule = f"a multiple of {unit}" if unit > 1 else "0 or more"
            raise ValueError(f"ks_cpu: group {group} has {count} of k; must be {rule}, so pad it with zeros")
        end = -(-end // split.alignment) * split.alignment + count
    if end > k or (split.by == "counts" and end < k):
        raise ValueError(f"ks_cpu: groups end at {end}, but k of a is {k}; pass the sizes that a has, or None")
