"""``gemmgen emit`` and ``gemmgen plan``: one spec in one of the forms it takes on its way to the hardware.

Loads NVRTC only for PTX and SASS.
"""

from __future__ import annotations

from gemmgen import backends
from gemmgen.commands.forms import Form
from gemmgen.commands.targets import chip
from gemmgen.ir import AnySpec, Node
from gemmgen.runtime.architectures import Architecture


def render(spec: AnySpec, form: Form, arch: str | None = None) -> str:
    """The text of a spec in that form; ``arch`` names the chip that PTX and SASS are for."""
    if form in (Form.PTX, Form.SASS):
        return (_ptx if form == Form.PTX else _sass)(spec, chip(spec, arch))
    return {Form.CUDA: backends.emit, Form.PLAN: plan, Form.JSON: Node.to_json}[form](spec)


def plan(spec: AnySpec) -> str:
    """The plan as a table that fits a screen."""
    return backends.table(backends.lower(spec))


def _ptx(spec: AnySpec, arch: Architecture) -> str:
    from gemmgen.runtime.compiler import cached_ptx

    return cached_ptx(backends.emit(spec), arch, f"{spec.name}.cu").text


def _sass(spec: AnySpec, arch: Architecture) -> str:
    from gemmgen.commands.sass import disassemble
    from gemmgen.runtime.compiler import cached_cubin

    return disassemble(cached_cubin(backends.emit(spec), arch, f"{spec.name}.cu").code)
