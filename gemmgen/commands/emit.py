"""``gemmgen emit`` and ``gemmgen plan``: one spec in one of the forms it takes on its way to the hardware.

Loads NVRTC only for PTX and SASS.
"""

from __future__ import annotations

from gemmgen import backends
from gemmgen.commands.forms import Form
from gemmgen.ir import KernelSpec


def render(spec: KernelSpec, form: Form) -> str:
    """The text of a spec in that form."""
    return {Form.CUDA: backends.emit, Form.PTX: _ptx, Form.SASS: _sass, Form.PLAN: plan, Form.JSON: KernelSpec.to_json}[
        form
    ](spec)


def plan(spec: KernelSpec) -> str:
    """The plan as a table of about a dozen lines."""
    return backends.table(backends.lower(spec))


def _ptx(spec: KernelSpec) -> str:
    from gemmgen.runtime.compiler import cached_ptx

    return cached_ptx(backends.emit(spec), spec.arch, f"{spec.name}.cu").text


def _sass(spec: KernelSpec) -> str:
    from gemmgen.commands.sass import disassemble
    from gemmgen.runtime.compiler import cached_cubin

    return disassemble(cached_cubin(backends.emit(spec), spec.arch, f"{spec.name}.cu").code)
