"""An epilogue apart from any kernel: the chain and the operands it names, to be put behind any product."""

from __future__ import annotations

import re

from pydantic import model_validator

from gemmgen.ir.chain import Chain
from gemmgen.ir.node import Name, Node
from gemmgen.ir.operand import Operand
from gemmgen.ir.spec import KernelSpec
from gemmgen.ir.steps import Cast, Gate, Quantise, Residual, Step, Store


class Epilogue(Node):
    """A chain of steps that ends with a store, without saying how it is staged: the kernel it is put into knows.

    ``operands`` are all that the steps name, outputs too. ``name`` becomes part of the names of kernels.
    """

    name: Name
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the operands that the chain writes: what its last step stores, then others as it names them."""
        *steps, last = self.steps
        return tuple(name for step in (last, *steps) for name in step.outputs)

    @property
    def gated(self) -> bool:
        """Whether the product has two columns for each of the output's."""
        return any(isinstance(step, Gate) for step in self.steps)

    @property
    def main(self) -> Operand:
        """The operand that the last step stores to."""
        return self.chain.operands[self.chain.last.to]

    @property
    def chain(self) -> Chain:
        """The steps and what they name."""
        return Chain(f"epilogue {self.name!r}", "steps", self.steps, {each.name: each for each in self.operands})

    @model_validator(mode="after")
    def _check(self) -> Epilogue:
        defined = [each.name for each in self.operands]
        named = [name for step in self.steps for name in step.operands]
        if unknown := [name for name in named if name not in defined]:
            raise ValueError(
                f"epilogue {self.name!r} names operand {unknown[0]!r}, which it does not define; it defines {defined}"
            )
        last = self.chain.last  # refuses a chain without a store, of which others would say less
        if twice := [name for name in defined if defined.count(name) > 1]:
            raise ValueError(f"epilogue {self.name!r}: operands define {twice[0]!r} twice; rename one")
        if idle := [name for name in defined if name not in named]:
            raise ValueError(f"epilogue {self.name!r}: no step names operand {idle[0]!r}; remove or use it")
        if last.through is not None:
            raise ValueError(
                f"epilogue {self.name!r}: its store goes through ring {last.through!r}, but which ring stages it is "
                "the kernel's business; leave through out"
            )
        self.chain.check()
        return self

    def of(self, spec: KernelSpec) -> KernelSpec:
        """The kernel with this chain instead of its own cast, residual and store.

        What it does to the product before those (NVFP4's factor) stays. Raises ``ValueError`` if the parts do not fit.
        """
        kept = tuple(step for step in spec.epilogue if not isinstance(step, Residual | Cast | Store | Quantise))
        steps = tuple(_staged(step, spec.chain.last.through) for step in self.steps)
        held = {name for ring in spec.rings if ring.turns != "store" for name in ring.holds}
        held |= set(getattr(spec.math.body, "reads", ()))
        held |= {name for step in kept for name in step.operands}
        return spec.replace(
            name=_named(spec.name, self.name),
            operands=(*(each for each in spec.operands if each.name in held), *self.operands),
            rings=tuple(
                ring.replace(holds=(self.main.name,)) if ring.turns == "store" else ring for ring in spec.rings
            ),
            epilogue=(*kept, *steps),
        )


def _named(kernel: str, epilogue: str) -> str:
    """The epilogue's name behind the product's; shipped kernels lose the type of their own output."""
    head, found, tail = kernel.rpartition("_bf16_")
    plain = f"{head}_{tail}" if found else kernel
    product = re.match(r"sm\d+_\w+?_gemm_[nt]{2}(?=_)", plain)
    return f"{plain}_{epilogue}" if product is None else f"{product[0]}_{epilogue}{plain[product.end() :]}"


def _staged(step: Step, through: str | None) -> Step:
    return step.replace(through=through) if isinstance(step, Store | Quantise) else step
