"""Operators of row groups on torch tensors: a product in which every group has a B, and what follows it.

Which tile serves them and how scales are read is the dense operators' business; only the layout of groups is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmgen.ir import Epilogue, Operand
from gemmgen.ops import dense, dense_block_scaled
from gemmgen.ops.dispatch import Dispatcher
from gemmgen.ops.groups import (
    ARGUMENTS,
    Groups,
    check_content,
    check_layout,
    contiguous,
    grouped_tail,
    looks_at_groups,
    masked,
    of_groups,
)
from gemmgen.ops.launch import Slots, not_repeated
from gemmgen.ops.problem import check_rank, packed_extents, require
from gemmgen.ops.product_op import DENSE_TYPES, ProductOp, check_names, digest, followed, named, optional
from gemmgen.ops.tail import Tail, fused, plain
from gemmgen.ops.tensor_op import empty_output

GROUPED_OPERATORS = {
    f"m_grouped_{product}_{form}": dtypes
    for form in ("contiguous", "masked")
    for product, dtypes in DENSE_TYPES.items()
}
"""Products of row groups, and the types of their factors."""


MEANT = {"use_psum_layout": False, "offsets": False, "ensure_zero_padding": True}
"""What may be said about a layout of groups whose rows are one matrix."""
TAKEN = {"layout", "groups", "expected_m", *ARGUMENTS.values(), *MEANT}
"""What these products take beside what all do."""


class GroupedOp(ProductOp):
    """A product of row groups and what follows it: ``f(a, b, grouped_layout, ..)``, or ``f(a, b, masked_m, ..)``."""

    placed = ("layout",)
    options = ("str groups_by", "int groups_alignment", "bool groups_zero_padding", "SymInt groups_rows")

    def __init__(self, operator: str, tail: Tail, operands: tuple[Operand, ...], name: str, registered: str) -> None:
        self.masked = operator.endswith("masked")
        self.by = "counts" if self.masked else "ids"
        tail = grouped_tail(tail, self.by)
        operands = of_groups(Groups(self.by), operands)
        super().__init__(operator, GROUPED_OPERATORS[operator], tail, operands, name, registered)
        self.layout_name = ARGUMENTS[self.by]
        meant = {} if self.masked else MEANT
        given = [*named("a", "b", self.layout_name), *self.keywords(), *optional(expected_m=None, **meant)]
        self.__signature__ = self.signature(given)
        self._dispatchers: dict[tuple[int, Groups], Dispatcher] = {}
        self._hot = self.repeated(self.apply, self.signature([*named("a", "b", "layout", "groups"), *self.keywords()]))

    def __call__(
        self,
        a: Any,
        b: Any,
        layout: torch.Tensor | None = None,
        expected_m: int | None = None,
        *,
        use_psum_layout: bool = False,
        offsets: bool = False,
        ensure_zero_padding: bool = True,
        **arguments: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        layout = arguments.pop(self.layout_name, layout)
        if self.masked:
            groups = masked(expected_m)
        else:
            groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, expected_m)
        result: torch.Tensor | tuple[torch.Tensor, ...] = self._hot(a, b, layout, groups, **arguments)
        return result

    def apply(
        self,
        a: Any,
        b: Any,
        layout: Any,
        groups: Groups,
        *,
        recipe: Sequence[int] | None = None,
        recipe_a: Sequence[int] | None = None,
        recipe_b: Sequence[int] | None = None,
        **arguments: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """A call that is not looked for among those made before: from operators that do so themselves."""
        factors, options = self.read(a, b, (recipe, recipe_a, recipe_b))
        if not isinstance(layout, torch.Tensor):
            check_layout(groups, layout, {}, factors[0].device)
        return self.applied((*factors, layout), (*options, *groups), arguments)

    def __repr__(self) -> str:
        return f"<gemmgen.fuse {self.__name__}{self.__signature__}>"

    def allocate(self, values: Sequence[Any]) -> Slots:
        """Every output in its shape, uninitialised; so are rows of no group."""
        sizes = self._sizes(values)
        by_name = {each.name: each for each in self.tail.operands}
        return tuple([empty_output(by_name[name], sizes, values[0].device) for name in self.outputs])

    def dispatch(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check everything and launch."""
        groups, layout, sizes = self._checked(values)
        if looks_at_groups(layout):
            check_content(groups, layout, sizes["m"], sizes["g"])
            not_repeated()
        after, scalars = self.after(values, outputs), self.scalars(values)
        if self.is_block_scaled(values):
            self._block_scaled(values, groups, (layout, *after)).run()
        else:
            self._dispatcher(values, groups)((*values[: len(self.factors)], *after), scalars)

    def check(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check what fake tensors have."""
        groups, layout, _ = self._checked(values)
        groups = groups._replace(rows=0)  # a hint: compilers may know it as a symbol, and fake tensors need no tile
        after = self.after(values, outputs)
        if self.is_block_scaled(values):
            self._block_scaled(values, groups, (layout, *after)).check()
        else:
            self._dispatcher(values, groups).check((*values[: len(self.factors)], *after))

    def _checked(self, values: Sequence[Any]) -> tuple[Groups, torch.Tensor, dict[str, int]]:
        """The groups, their layout and the product's extents; refuses a layout that does not fit."""
        groups, layout = Groups(*values[self._before - len(Groups._fields) : self._before]), values[self._layout_at]
        sizes = self._sizes(values)
        check_layout(groups, layout, sizes, values[0].device)
        return groups, layout, sizes

    @property
    def _layout_at(self) -> int:
        return len(self.factors) - 1

    def _sizes(self, values: Sequence[Any]) -> dict[str, int]:
        tensors = {"m": values[0], "n": values[self.factors.index("b")]}
        sizes: dict[str, int] = {}
        as_given = dense_block_scaled.as_given if self.scaled else dense.as_given
        for (axis, tensor), name in zip(tensors.items(), "ab", strict=True):
            (operand,) = of_groups(Groups(self.by), (as_given(name, axis, tensor),))
            check_rank(operand, tensor)
            found = packed_extents(operand, tensor)
            _check_groups(found.get("g"), sizes.get("g"))
            sizes |= found
        return sizes

    def _block_scaled(self, values: Sequence[Any], groups: Groups, after: Slots) -> dense_block_scaled.Call:
        a, sfa, b, sfb, _, recipe, blocked = values[: self._layout_at + 3]
        return dense_block_scaled.Call(
            a, sfa, b, sfb, after, recipe, blocked, None, self.tail, self.scalars(values), groups
        )

    def _dispatcher(self, values: Sequence[Any], groups: Groups) -> Dispatcher:
        """The dispatcher of these groups, of scales on the way or none; one for each granularity of b's scales."""
        columns = dense.scale_columns(values[2], values[3]) if self.scaled else 0
        if (columns, groups) not in self._dispatchers:
            made = (
                dense.fp8_dispatcher(columns, self.tail, groups)
                if columns
                else dense.bf16_dispatcher(self.tail, groups)
            )
            self._dispatchers[columns, groups] = made
        return self._dispatchers[columns, groups]


def _check_groups(of_b: int | None, of_a: int | None) -> None:
    """Where both have groups they agree, or a layout would be blamed that fits one of them."""
    if of_a is not None and of_b is not None:
        require(of_a == of_b, lambda: f"b: g is {of_b}, but g of a is {of_a}; they must be equal")


def fused_groups(operator: str, epilogue: Epilogue) -> GroupedOp:
    """The product of row groups with an author's epilogue behind it, written as for a dense product."""
    options = {each.name for each in epilogue.operands if each.name.startswith("groups_")}
    check_names(operator, epilogue, torch.bfloat16 not in GROUPED_OPERATORS[operator], TAKEN | options)
    name = f"{operator}_{epilogue.name}"
    made = GroupedOp(operator, fused(epilogue), epilogue.operands, name, f"{name}_{digest(epilogue)}")
    made.__doc__ = f"{followed(operator, epilogue)}\n\na, b, {made.layout_name}: as {operator}.\n{made.document()}"
    MADE_GROUPED[made.name] = made
    return made


def _plain(operator: str, dtype: torch.dtype) -> GroupedOp:
    tail, name = plain(dtype, False), plain_name(operator, dtype)
    return GroupedOp(operator, tail, tail.operands, operator, name)


def plain_name(operator: str, dtype: torch.dtype) -> str:
    """The registered name of an operator whose output is only rounded."""
    return operator if dtype == torch.bfloat16 else f"{operator}_f32"


MADE_GROUPED: dict[str, GroupedOp] = {
    plain_name(operator, dtype): _plain(operator, dtype)
    for operator in GROUPED_OPERATORS
    for dtype in (torch.bfloat16, torch.float32)
}
"""Every one by its registered name; those whose outputs are only rounded are there from the start."""
