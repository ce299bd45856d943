"""Block scales as callers have them, for tensor cores that scale: what is accepted, and the words that kernels read.

Judges types, shapes and the stated granularity; nothing is guessed from a shape but whether B has a scale per row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gemmgen import catalog
from gemmgen.ir import Arch, DType
from gemmgen.ops.problem import EXTENT_LIMIT, require
from gemmgen.ops.quantise import align, ceil_div, check_ue8m0, transform_sf_into_required_layout
from gemmgen.ops.quantise.layout import ATOM_COLUMNS, ATOM_ROWS, BYTE_TYPES, lies_mn_major
from gemmgen.ops.relayout import Move, put_off
from gemmgen.ops.whole_numbers import whole_numbers

Gran = tuple[int, int]
"""Rows and elements of k that share a scale."""
BY_SHAPE = 0
"""In place of B's rows: 1 when it has a scale per row, else 128."""
DEFAULT = (1, 128, BY_SHAPE, 128)
K_GRANS = 32, 128
"""Elements of k that a tensor core has a scale for; rows that share one are repeated, so any number may."""


CHECK_VARIABLE = "GEMMGEN_CHECK_SCALES"
"""Set to 1, it has fp32 scales on a GPU looked at in every call, which then waits for the GPU: for finding mistakes."""


def looks_at_content(device: torch.device) -> bool:
    """Whether a call may read scales: on the CPU always, on a GPU when asked to, never while a graph is captured."""
    if device.type == "cpu":
        return True
    asked = device.type == "cuda" and os.environ.get(CHECK_VARIABLE) == "1"
    return asked and not torch.cuda.is_current_stream_capturing()


WORDS_A_CHUNK = 4
"""Words in the 16 bytes at whose multiples groups' scales start."""


class Blocked128x4(NamedTuple):
    """Says that one-byte scales lie in torch's 128x4 blocks, as ``to_blocked_128x4`` and ``torch._scaled_mm`` have it.

    Takes the place of the scales in a pair: ``a=(data, Blocked128x4(scales))``. Flat or of any other shape, all blocks
    whole.
    """

    scales: torch.Tensor


class Scales(NamedTuple):
    """The scales of one factor [mn, k]: their name in messages, granularity, and whether they lie in blocks.

    Those that are not ``looked_at`` may hold anything where nobody reads the rows they belong to.
    """

    name: str
    gran: Gran
    blocked: bool
    looked_at: bool = True

    def check(self, sf: torch.Tensor, mn: int, k: int, groups: int | None = None) -> None:
        """Refuse scales of another type or shape, also fake ones. With ``groups`` every group has its own."""
        self.check_type(sf)
        rows, columns = ceil_div(mn, self.gran[0]), ceil_div(k, self.gran[1])
        if self.blocked:
            self._check_blocks(sf, rows, columns, groups)
            return
        own = () if groups is None else (groups,)
        wanted = (*own, rows, ceil_div(columns, 4) if sf.dtype == torch.int32 else columns)
        require(sf.dim() == len(wanted), lambda: self._shape_message(sf, wanted))
        for found, size in zip(sf.shape, wanted, strict=True):
            require(found == size, lambda: self._shape_message(sf, wanted))

    def words(
        self, sf: torch.Tensor, mn: int, k: int, arch: Arch, later: list[Move], groups: int | None = None
    ) -> torch.Tensor:
        """int32 [mn, words] contiguous along mn, four scales each: the scales themselves when they lie so already.

        fp32 scales (copied first if they are contiguous along mn), bytes and words that lie row by row cost one layout
        kernel, which is left for ``later``; other forms cost a few small ones. An fp32 scale that is no power of two is
        refused where looking at it waits for nothing or was asked for (``CHECK_VARIABLE``); elsewhere it becomes NaN,
        and so does what it multiplies. With ``groups`` every group has its own: where they lie so that they count as
        rows of one matrix they are laid out likewise, elsewhere by torch.
        """
        if sf.dtype == torch.float32 and self.looked_at and looks_at_content(sf.device):
            check_ue8m0(sf, self.name)
        if groups is not None:
            return self._of_groups(sf, mn, k, arch, later, groups)
        if sf.dtype == torch.float32:
            rows = sf if sf.stride(1) == 1 or sf.shape[1] == 1 else sf.contiguous()
            return put_off(later, catalog.pack_ue8m0(arch, self.gran[0]), rows, mn)
        if sf.dtype == torch.int32 and self.gran[0] == 1 and sf.stride(1) == 1 and not lies_mn_major(sf):
            return put_off(later, catalog.to_m_major(arch, DType.UE8M0X4), sf)
        if (
            sf.dtype in BYTE_TYPES
            and not self.blocked
            and self.gran[0] == 1
            and (sf.stride(1) == 1 or sf.shape[1] == 1)
        ):
            return put_off(later, catalog.pack_bytes(arch), sf.view(torch.float8_e8m0fnu))
        plain = sf.reshape(-1) if self.blocked else sf
        return transform_sf_into_required_layout(plain, mn, k, self.gran, arch=arch)

    def _of_groups(self, sf: torch.Tensor, mn: int, k: int, arch: Arch, later: list[Move], groups: int) -> torch.Tensor:
        """int32 [groups, mn, words] contiguous along mn."""
        sf = sf.contiguous() if sf.dtype == torch.float32 else sf
        as_they_lie = sf.dtype == torch.int32 and self.gran[0] == 1 and lies_mn_major(sf)
        whole = mn % self.gran[0] == mn % WORDS_A_CHUNK == 0
        if self.blocked or as_they_lie or not whole or sf.stride(0) != sf.shape[1] * sf.stride(1):
            plain = sf.reshape(groups, -1) if self.blocked else sf
            return transform_sf_into_required_layout(plain, mn, k, self.gran, groups, arch=arch)
        flat = self._replace(looked_at=False)
        return flat.words(sf.flatten(0, 1), groups * mn, k, arch, later).unflatten(0, (groups, mn))

    def check_type(self, sf: torch.Tensor) -> None:
        """Refuse scales of a type that says nothing that a kernel reads."""
        if sf.layout != torch.strided:
            raise TypeError(f"{self.name}: layout is {sf.layout}; must be strided, so pass {self.name}.to_dense()")
        ue4m3 = self.gran[1] == 16
        byte = torch.float8_e4m3fn if ue4m3 else torch.float8_e8m0fnu
        if self.blocked:
            allowed: tuple[torch.dtype, ...] = (byte,)
        else:
            allowed = (byte, torch.int32) if ue4m3 else (byte, torch.int32, torch.float32)
        if sf.dtype in allowed:
            return
        kinds = " or ".join(map(str, allowed))
        where = "in 128x4 blocks are" if self.blocked else "are"
        meaning = "UE4M3" if ue4m3 else "powers of two (UE8M0)"
        if sf.dtype.is_floating_point and sf.dtype.itemsize > 1:
            way_out = f"pass {self.name}.to({torch.float32 if torch.float32 in allowed else byte})"
        else:
            way_out = (
                f"bytes of another type are never guessed at, so pass {self.name}.view({byte}) if that is what they are"
            )
        raise TypeError(f"{self.name}: dtype is {sf.dtype}; scales here {where} {meaning} in {kinds}; {way_out}")

    def _check_blocks(self, sf: torch.Tensor, rows: int, columns: int, groups: int | None) -> None:
        wanted = align(rows, ATOM_ROWS) * align(columns, ATOM_COLUMNS) * (1 if groups is None else groups)
        require(
            sf.numel() == wanted,
            lambda: f"{self.name}: has {sf.numel()} scales in 128x4 blocks; {rows} x {columns} of them, one per "
            f"{self.gran[0]} x {self.gran[1]} elements, make {wanted}; pass to_blocked_128x4(scales)",
        )
        if not sf.is_contiguous():
            raise ValueError(
                f"{self.name}: strides are {tuple(sf.stride())}; blocks follow each other in memory, so pass "
                f"{self.name}.contiguous()"
            )

    def _shape_message(self, sf: torch.Tensor, wanted: tuple[int, ...]) -> str:
        four = ", four in a word," if sf.dtype == torch.int32 else ""
        return (
            f"{self.name}: shape is {tuple(sf.shape)}; one scale per {self.gran[0]} x {self.gran[1]} elements{four} "
            f"makes {tuple(wanted)}; pass such scales, a recipe of the granularity they have, or Blocked128x4(scales) "
            "if they lie in 128x4 blocks"
        )


def granularity(
    recipe: Sequence[int] | None, recipe_a: Sequence[int] | None, recipe_b: Sequence[int] | None
) -> tuple[int, int, int, int] | None:
    """Rows and k per scale, of A and of B, as sm100 and sm120 take them; None when nothing is stated."""
    found = stated(recipe, recipe_a, recipe_b)
    for rows, k in () if found is None else (found[:2], found[2:]):
        if not 1 <= rows <= EXTENT_LIMIT or k not in K_GRANS:
            name = "recipe_a + recipe_b" if recipe is None else "recipe"
            raise ValueError(
                f"{name}: says one scale per {rows} x {k} elements; sm100 and sm120 take "
                f"any number of rows from 1 and {' or '.join(map(str, K_GRANS))} elements of k"
            )
    return found


def stated(
    recipe: Sequence[int] | None, recipe_a: Sequence[int] | None, recipe_b: Sequence[int] | None
) -> tuple[int, int, int, int] | None:
    """The same in any whole numbers."""
    if recipe is not None and (recipe_a is not None or recipe_b is not None):
        raise ValueError(f"recipe: {recipe} comes with recipe_a or recipe_b; pass either recipe or both others")
    if recipe is not None:
        rows_a, rows_b, k = _parts("recipe", recipe, "(gran_m of a, gran_n of b, gran_k)", (1, 128, 128))
        return rows_a, k, rows_b, k
    if recipe_a is None and recipe_b is None:
        return None
    if recipe_a is None or recipe_b is None:
        missing = "recipe_a" if recipe_a is None else "recipe_b"
        raise ValueError(f"{missing}: is missing; pass recipe_a and recipe_b together, or recipe alone")
    meaning = "(rows, elements of k) that share a scale"
    rows_a, k_a = _parts("recipe_a", recipe_a, meaning, (1, 128))
    rows_b, k_b = _parts("recipe_b", recipe_b, meaning, (128, 128))
    return rows_a, k_a, rows_b, k_b


def _parts(name: str, recipe: Sequence[int], meaning: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """A recipe's numbers, as many as the usual one has."""
    found = whole_numbers(recipe)
    if found is not None and len(found) == len(usual):
        return found
    refused = TypeError if found is None else ValueError
    rule = f"a tuple of {len(usual)} whole numbers {meaning}"
    raise refused(f"{name}: is {recipe!r}; must be {rule}; pass {name}={usual}, or what each scale stands for")


def default_granularity(sfa: torch.Tensor, sfb: torch.Tensor, blocked: bool) -> tuple[int, int, int, int]:
    """What scales stand for when no recipe says so: 128 of k, and for B's rows what their number says."""
    for name, sf in (("sfa", sfa), ("sfb", sfb)):
        if not blocked:
            Scales(name, (1, 128), False).check_type(sf)
        if blocked or sf.dtype not in (torch.float32, torch.int32):
            raise ValueError(
                f"recipe: is missing; {name} has {'128x4 blocks' if blocked else sf.dtype}, which say nothing about "
                "granularity; pass recipe_a=(1, 32) and recipe_b=(1, 32), or what each scale stands for"
            )
    return DEFAULT
