"""``gemmgen.fuse``: a shipped product with an author's epilogue behind it, as a function of torch tensors.

The operator's own rules choose the tile and read the factors; only what follows the product is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from gemmgen.ir import Epilogue
from gemmgen.ops import dense, dense_block_scaled
from gemmgen.ops.dispatch import Dispatcher
from gemmgen.ops.grouped_op import GROUPED_OPERATORS, GroupedOp, fused_groups
from gemmgen.ops.launch import Slots
from gemmgen.ops.product_op import DENSE_TYPES, ProductOp, check_names, digest, followed, named
from gemmgen.ops.tail import fused
from gemmgen.ops.tensor_op import empty_output

FUSED_OPERATORS = {**DENSE_TYPES, **GROUPED_OPERATORS}
"""Products that take an epilogue, and the types of their factors."""


def fuse(operator: str, epilogue: Epilogue) -> FusedOp | GroupedOp:
    """A function ``f(a, b, **operands)`` of a product and what follows it; the same arguments give the same function.

    operator: one of ``FUSED_OPERATORS``; ``a`` and ``b`` are what that operator takes, pairs with scales or bf16 views.
        One of row groups also takes ``grouped_layout`` and how it is meant, or ``masked_m``.
    epilogue: its operands are passed by name, tensors in box order, host scalars as numbers. Behind row groups what has
        n and no m in its box has one more dimension, a part for every group, and so has a number on the device; with
        ``masked_m`` so has what has m.
    """
    if operator not in FUSED_OPERATORS:
        raise ValueError(f"operator: {operator!r} takes no epilogue; use one of {', '.join(FUSED_OPERATORS)}")
    if not isinstance(epilogue, Epilogue):
        raise TypeError(f"epilogue: is a {type(epilogue).__name__}; pass a gemmgen.Epilogue")
    return _fuse(operator, epilogue)


@cache
def _fuse(operator: str, epilogue: Epilogue) -> FusedOp | GroupedOp:
    if operator in GROUPED_OPERATORS:
        return fused_groups(operator, epilogue)
    made = FusedOp(operator, epilogue)
    MADE[made.name] = made
    return made


MADE: dict[str, FusedOp] = {}
"""Every one of a dense product by its registered name: compilers follow a look-up, but not how specs are made."""


class FusedOp(ProductOp):
    """A dense product and an epilogue."""

    def __init__(self, operator: str, epilogue: Epilogue) -> None:
        name, dtypes = f"{operator}_{epilogue.name}", DENSE_TYPES[operator]
        check_names(operator, epilogue, torch.bfloat16 not in dtypes)
        super().__init__(operator, dtypes, fused(epilogue), epilogue.operands, name, f"{name}_{digest(epilogue)}")
        self.epilogue = epilogue
        self.__doc__ = f"{followed(operator, epilogue)}\n\na, b: as {operator}.\n{self.document()}"
        self.__signature__ = self.signature([*named("a", "b"), *self.keywords()])
        self._dispatchers: dict[int, Dispatcher] = {}
        self._hot = self.repeated(self.apply, self.__signature__)

    def __call__(self, *positional: Any, **named: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        result: torch.Tensor | tuple[torch.Tensor, ...] = self._hot(*positional, **named)
        return result

    def apply(
        self,
        a: Any,
        b: Any,
        *,
        recipe: Sequence[int] | None = None,
        recipe_a: Sequence[int] | None = None,
        recipe_b: Sequence[int] | None = None,
        **arguments: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """A call that is not looked for among those made before: from operators that do so themselves."""
        return self.applied(*self.read(a, b, (recipe, recipe_a, recipe_b)), arguments)

    def __repr__(self) -> str:
        return f"<gemmgen.fuse {self.__name__}{self.__signature__}>"

    def allocate(self, values: Sequence[Any]) -> Slots:
        """Every output in its shape, uninitialised."""
        a, b = values[0], values[self.factors.index("b")]
        if self.scaled:
            sizes = {"m": dense_block_scaled.rows("a", "m", a), "n": dense_block_scaled.rows("b", "n", b)}
        else:
            sizes = dict(zip("mn", dense.empty(a, b, torch.bfloat16).shape, strict=True))
        by_name = {each.name: each for each in self.tail.operands}
        return tuple([empty_output(by_name[name], sizes, a.device) for name in self.outputs])

    def dispatch(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check everything and launch."""
        if self.is_block_scaled(values):
            self._block_scaled(values, outputs).run()
        else:
            slots = (*values[: len(self.factors)], *self.after(values, outputs))
            self._dispatcher(values)(slots, self.scalars(values))

    def check(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check what fake tensors have."""
        if self.is_block_scaled(values):
            self._block_scaled(values, outputs).check()
        else:
            self._dispatcher(values).check((*values[: len(self.factors)], *self.after(values, outputs)))

    def _block_scaled(self, values: Sequence[Any], outputs: Slots) -> dense_block_scaled.Call:
        a, sfa, b, sfb, recipe, blocked = values[: self._before]
        after, scalars = self.after(values, outputs), self.scalars(values)
        return dense_block_scaled.Call(a, sfa, b, sfb, after, recipe, blocked, None, self.tail, scalars)

    def _dispatcher(self, values: Sequence[Any]) -> Dispatcher:
        """The dispatcher of products that scale on the way, or not at all; one for each granularity of b's scales."""
        columns = dense.scale_columns(values[2], values[3]) if self.scaled else 0
        if columns not in self._dispatchers:
            tail = self.tail
            self._dispatchers[columns] = dense.fp8_dispatcher(columns, tail) if columns else dense.bf16_dispatcher(tail)
        return self._dispatchers[columns]
