"""The Python side of the generated library: one documented module an op, with the signature of ``gemmgen.ops``.

Loads ``gemmgen.ops`` (and so torch) only to read signatures.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemmgen.generate.operator import Operator
from gemmgen.generate.operators import ERRORS, OPERATORS, kernels_of
from gemmgen.ir import Arch

LINE_LENGTH = 120
OTHERS = (
    "align",
    "bf16_m_grouped_gemm_nt_masked",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "fp8_m_grouped_gemm_nt_masked",
    "get_deterministic_algorithms",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_pdl",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "transform_sf_into_required_layout",
    "transpose_packed_fp4",
    "use_deterministic_algorithms",
    "warmup",
)
"""What else callers of the ops call: other names of some, what is set for the process, layouts and casts of scales."""
ALIASES = {
    "Pair": "tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4]",
    "Quantised": "tuple[torch.Tensor, torch.Tensor]",
    "Recipe": "tuple[int, ...]",
    "Sequence[int]": "list[int] | tuple[int, ...]",
}
"""Type aliases of ``gemmgen.ops`` written out, so that a reader of the wrapper need not look them up."""


def python_files() -> dict[str, str]:
    """The package's ``__init__`` and a module for each op, formatted by black."""
    templates = Environment(
        loader=PackageLoader("gemmgen", "templates/python"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    names = {"ops": sorted(OPERATORS), "others": OTHERS, "names": sorted((*OPERATORS, *OTHERS))}
    files = {"__init__.py": _black(templates.get_template("init.py.jinja").render(**names))}
    module = templates.get_template("op.py.jinja")
    files |= {f"{op.name}.py": _black(module.render(**_view(op))) for op in OPERATORS.values()}
    return {**files, "py.typed": ""}


def _view(op: Operator) -> dict[str, Any]:
    from gemmgen import ops

    signature = inspect.signature(getattr(ops, op.name))
    parameters = list(signature.parameters.values())
    _check_documented(op, [parameter.name for parameter in parameters])
    source = op.kernels or op.name
    specs = [spec for arch in Arch for spec in kernels_of(source, arch)]
    folders = sorted({f"kernels/{spec.arch}/{spec.arch}_{source}_*.cu" for spec in specs})
    written = f"{len(specs)} kernels in this package as {', '.join(folders)}, each beside its spec (.json)."
    return {
        "op": op,
        "parameters": _declared(parameters),
        "documented": [_wrapped(f"{each.name}: {op.parameters[each.name]}", 8) for each in parameters],
        "returns": _annotation(signature.return_annotation),
        "arguments": ", ".join(map(_forwarded, parameters)),
        "errors": ERRORS,
        "source": _wrapped(f"Source: {written if specs else 'kernels are made at the first call that needs them.'}", 4),
        "targets": " or ".join(
            f'``gemmgen.simulate("{arch}")``' for arch in Arch if not specs or kernels_of(source, arch)
        ),
    }


def _wrapped(text: str, indent: int) -> str:
    """An entry of a docstring, its further lines indented once more."""
    return textwrap.fill(
        text,
        LINE_LENGTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _check_documented(op: Operator, names: list[str]) -> None:
    if sorted(names) != sorted(op.parameters):
        raise ValueError(
            f"op {op.name!r} takes {sorted(names)}, but gemmgen/generate/operators.py describes "
            f"{sorted(op.parameters)}; describe exactly what it takes"
        )


def _declared(parameters: list[inspect.Parameter]) -> list[str]:
    """The parameter list, one entry a line, with the star before the first keyword-only one."""
    lines, starred = [], False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {_annotation(parameter.annotation)}{default}")
    return lines


def _annotation(annotation: str) -> str:
    """An annotation as written in ``gemmgen.ops`` (its annotations are text), aliases written out."""
    return " | ".join(ALIASES.get(part, part) for part in annotation.split(" | "))


def _forwarded(parameter: inspect.Parameter) -> str:
    keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
    return f"{parameter.name}={parameter.name}" if keyword else parameter.name


def _black(text: str) -> str:
    import black
    from black.mode import TargetVersion

    # The target is named so that the interpreter that runs black does not matter.
    return black.format_str(text, mode=black.Mode(line_length=LINE_LENGTH, target_versions={TargetVersion.PY311}))
