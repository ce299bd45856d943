"""An entry made ready for a launch: shared layout, parameters, decoded instructions and constant operands.
It joins parser, registry and values; it may not know what any instruction does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import BlockCode, compile_block
from .errors import Fault, UnknownInstruction
from .memory import PARAM_WINDOW, SHARED_START, Block
from .ptx_text import Entry, Variable
from .registry import Bind, Meaning, meaning
from .types import DTYPES, LANES, Array, Imm, Instr, Reg, Special, Sym
from .values import constant, literal

if TYPE_CHECKING:
    from .module import Module
    from .warp import Warp

FULL = 0xFFFFFFFF


class Program:
    """Shared by all CTAs of a launch, and by launches of the same module."""

    def __init__(self, module: Module, entry: Entry, addresses: dict[str, int]) -> None:
        self.module = module
        self.entry = entry
        self.addresses = addresses  # of module-scope global and const variables
        self.shared: dict[str, Any] = module.shared.setdefault(entry.name, {})  # kept from launch to launch
        self.binds: list[Bind | None] = self.shared.setdefault("binds", [None] * len(entry.instrs))
        self.shared_offsets: dict[str, int] = {}
        self.local_offsets: dict[str, int] = {}
        self.dynamic_start = self._lay_out()
        self.copies_tensors = any(instr.base == "cp" and "tensor" in instr.parts for instr in entry.instrs)
        self.counts_globally = any(
            instr.base in ("atom", "red") and not {"shared", "shared::cta", "shared::cluster"} & set(instr.parts)
            for instr in entry.instrs
        )
        self.params = Block("kernel parameters", PARAM_WINDOW, np.zeros(0, np.uint8))
        self.code_names: dict[str, Any] = self.shared.setdefault("names", {})
        # operands that differ by warp and are neither registers nor literals
        self.extras: list[tuple[Any, str]] = self.shared.setdefault("extras", [])
        self._codes: dict[tuple[int, bool], BlockCode] = self.shared.setdefault("codes", {})

    def block(self, pc: int, full: bool) -> BlockCode:
        """The compiled block that starts at pc."""
        found = self._codes.get((pc, full))
        if found is None:
            found = self._codes[pc, full] = compile_block(self, pc, full)
        return found

    def extra(self, operand: Any, dtype: str) -> int:
        """Number of a per-warp operand row."""
        if (operand, dtype) not in self.extras:
            self.extras.append((operand, dtype))
        return self.extras.index((operand, dtype))

    def _lay_out(self) -> int:
        shared, local, dynamic_align, dynamic = SHARED_START, 0, 16, []
        for variable in self.entry.variables.values():
            if variable.space == "shared" and variable.extern:
                dynamic_align = max(dynamic_align, variable.align)
                dynamic.append(variable.name)
            elif variable.space == "shared":
                shared = _place(variable, shared, self.shared_offsets)
            elif variable.space == "local":
                local = _place(variable, local, self.local_offsets)
        self.local_bytes = local
        start = -(-shared // dynamic_align) * dynamic_align
        self.shared_offsets.update(dict.fromkeys(dynamic, start))
        return start

    def set_params(self, values: list[bytes]) -> None:
        """Lay the argument block out; one bytes object per parameter, of exactly its size."""
        expected = self.entry.params
        if len(values) != len(expected):
            raise Fault(f"{self.entry.name} takes {len(expected)} parameters, got {len(values)}")
        total = expected[-1].offset + expected[-1].nbytes if expected else 0
        data = np.zeros(-(-total // 16) * 16, np.uint8)
        for param, value in zip(expected, values, strict=True):
            if len(value) != param.nbytes:
                raise Fault(f"parameter {param.name} has {param.nbytes} bytes, got {len(value)}")
            data[param.offset : param.offset + param.nbytes] = np.frombuffer(bytes(value), np.uint8)
        self.params = Block("kernel parameters", PARAM_WINDOW, data, writable=False)

    def decoded(self, instr: Instr, found: Meaning) -> Bind:
        """The instruction's bind function, decoded once."""
        bind = self.binds[instr.pc]
        if bind is None:
            bind = self.binds[instr.pc] = found.decode(instr)
        return bind

    def check(self) -> None:
        """Decode every instruction now, reachable or not; raises UnknownInstruction."""
        for instr in self.entry.instrs:
            try:
                self.decoded(instr, meaning(instr))
            except UnknownInstruction as error:
                raise UnknownInstruction(f"{self.entry.name}: {self.place(instr)}: {error}") from None

    def lanes_needed(self, instr: Instr) -> Callable[[Warp], int]:
        """The lanes a `.sync` instruction waits for: its membermask operand, or all live ones for `.aligned`."""
        if "aligned" in instr.parts or instr.base in ("bar", "barrier"):
            return lambda warp: FULL
        operand = instr.operands[-1]

        def from_operand(warp: Warp) -> int:
            row = self.source(warp, operand, "u32")
            return int(row[warp.active[0]])

        return from_operand

    def variable(self, name: str) -> Variable:
        found = self.entry.variables.get(name)
        if found is None:
            raise UnknownInstruction(f"{name!r} is not a variable of {self.entry.name}")
        return found

    def address_of(self, warp: Warp, symbol: Sym) -> int:
        """A variable's address in its own space."""
        variable = self.variable(symbol.name)
        if variable.space == "shared":
            return warp.cta.shared_base + self.shared_offsets[variable.name] + symbol.offset
        if variable.space == "local":
            return self.local_offsets[variable.name] + symbol.offset
        if variable.space == "param":
            return variable.offset + symbol.offset
        return self.addresses[variable.name] + symbol.offset

    def source(self, warp: Warp, operand: Any, dtype: str) -> Array:
        """An operand's 32 lanes as dtype."""
        if isinstance(operand, Reg):
            return warp.registers.row(operand, dtype)
        if isinstance(operand, Imm):
            return literal(operand, dtype)
        if isinstance(operand, Special):
            row: Array = special(warp, operand.name).astype(DTYPES[dtype])
            return row
        if isinstance(operand, Sym):
            return constant(self.address_of(warp, operand), dtype)
        raise UnknownInstruction(f"operand {operand} is not understood here")

    def place(self, instr: Instr) -> str:
        """Where an instruction stands, for messages."""
        return str(self.module.place(instr))


def _place(variable: Variable, at: int, offsets: dict[str, int]) -> int:
    at = -(-at // variable.align) * variable.align
    offsets[variable.name] = at
    return at + variable.nbytes


_AXES = {"x": 0, "y": 1, "z": 2, "w": 3}


def special(warp: Warp, name: str) -> Array:
    """The 32 lanes of a special register that does not change while the warp runs."""
    base, _, axis = name.partition(".")
    if base.startswith("lanemask_"):
        return _lanemask(base.removeprefix("lanemask_"))
    if base == "laneid":
        return np.arange(LANES, dtype=np.uint32)
    if base == "tid":
        return _thread_index(warp, _AXES[axis])
    value = _uniform(warp, base)
    if isinstance(value, tuple):
        value = (*value, 0)[_AXES[axis]]
    return np.full(LANES, value, np.uint64)


def _thread_index(warp: Warp, axis: int) -> Array:
    x, y, _ = warp.cta.cluster.launch.block
    linear = warp.index * LANES + np.arange(LANES)
    found: Array = (linear % x, linear // x % y, linear // (x * y), linear * 0)[axis]
    return found


def _lanemask(which: str) -> Array:
    one = np.uint64(1) << np.arange(LANES, dtype=np.uint64)
    below = one - np.uint64(1)
    table = {"eq": one, "lt": below, "le": below | one, "gt": ~(below | one), "ge": ~below}
    found: Array = table[which] & np.uint64(0xFFFFFFFF)
    return found


def _uniform(warp: Warp, base: str) -> Any:
    cta, cluster, launch = warp.cta, warp.cta.cluster, warp.cta.cluster.launch
    counts = tuple(g // c for g, c in zip(launch.grid, launch.cluster, strict=True))
    index = tuple(p // c for p, c in zip(cta.position, launch.cluster, strict=True))
    table = {
        "ntid": launch.block,
        "ctaid": cta.position,
        "nctaid": launch.grid,
        "clusterid": index,
        "nclusterid": counts,
        "cluster_ctaid": cluster.place_of(cta.rank),
        "cluster_nctaid": cluster.shape,
        "cluster_ctarank": cta.rank,
        "cluster_nctarank": cluster.size,
        "is_explicit_cluster": int(cluster.size > 1),
        "warpid": warp.index,
        "nwarpid": cta.warp_count,
        "smid": launch.sm_of(cta.position),
        "nsmid": cta.gpu.sms,
        "gridid": 0,
        "dynamic_smem_size": cluster.shared_bytes,
        "total_smem_size": cta.smem.nbytes - SHARED_START,
        "aggr_smem_size": cta.smem.nbytes,
    }
    if base not in table:
        raise UnknownInstruction(f"special register %{base} has no value in the simulator")
    return table[base]
