"""CUDA text to PTX or cubin with NVRTC: needs no GPU, no driver and no toolkit.

It calls the NVRTC bindings directly, because `cuda.core.Program` takes no headers from memory and asks the driver for
its version before it hands out PTX. Importing this module loads nothing; the first compilation opens the library.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gemmgen.runtime.architectures import Architecture, ArchitectureLike, check_nvrtc, resolve
from gemmgen.runtime.errors import CompileError, NvrtcNotFound
from gemmgen.runtime.headers import Headers, package_headers
from gemmgen.runtime.resources import Resources, parse_resources

Kind = Literal["ptx", "cubin"]

# Sources come from memory only: `--no-source-include` keeps a stray header in the current directory out of the build.
COMMON_FLAGS = ("-std=c++20", "-default-device", "--no-source-include")
# The simulator's reports name lines of the source; in a cubin the same information costs a fifth of the compile time.
KIND_FLAGS: dict[Kind, tuple[str, ...]] = {"ptx": ("-lineinfo",), "cubin": ("--ptxas-options=-v",)}

_ERROR_LINE = re.compile(r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error", re.MULTILINE)
_PTXAS_ERROR_LINE = re.compile(r"^ptxas .*line (?P<line>\d+); (?:error|fatal)", re.MULTILINE)
_FILE_DIRECTIVE = re.compile(r'^(\s*\.file\s+\d+\s+")([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """What NVRTC made of one source; `resources` has a row per kernel and is empty for PTX.

    `seconds` is what the compilation took, also when this was read back from the cache.
    """

    kind: Kind
    code: bytes
    log: str
    seconds: float
    nvrtc_version: str
    resources: Mapping[str, Resources] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The PTX as text."""
        return self.code.decode()


def compile_ptx(source: str, arch: ArchitectureLike, name: str, headers: Headers | None = None) -> Compiled:
    """Compile `source` to PTX; `name` is how messages and `.file` directives call it."""
    return _compile(source, resolve(arch), name, "ptx", package_headers() if headers is None else headers)


def compile_cubin(source: str, arch: ArchitectureLike, name: str, headers: Headers | None = None) -> Compiled:
    """Compile `source` to a binary for the chip, with its register and spill report."""
    return _compile(source, resolve(arch), name, "cubin", package_headers() if headers is None else headers)


def flags(arch: Architecture, kind: Kind) -> tuple[str, ...]:
    """The NVRTC options for `arch`; part of the cache key."""
    target = arch.code if kind == "cubin" else arch.virtual
    return (f"-arch={target}", *COMMON_FLAGS, *KIND_FLAGS[kind])


def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the NVRTC library."""
    major, minor = _call(_load().nvrtcVersion)
    return int(major), int(minor)


@cache
def nvrtc_identity() -> str:
    """Version and library size: patch releases share a version number and may still generate other code."""
    _load()
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    size = Path(path).stat().st_size if path else 0
    return f"{_dotted_version()}/{size}"


def _dotted_version() -> str:
    return ".".join(map(str, nvrtc_version()))


@cache
def _load() -> Any:
    """The NVRTC bindings with the library behind them opened, or a message that says how to install it."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        _keep_builtins_open(load_nvidia_dynamic_lib("nvrtc").abs_path)
        from cuda.bindings import nvrtc
    except (DynamicLibNotFoundError, OSError, ImportError) as error:
        raise NvrtcNotFound(
            "NVRTC, the CUDA run-time compiler library, is missing: libnvrtc was looked for in the installed "
            "nvidia-cuda-nvrtc package, in a conda environment, in the system library path and under CUDA_HOME. "
            f"Fix: pip install nvidia-cuda-nvrtc. The loader said: {error}"
        ) from error
    return nvrtc


def _keep_builtins_open(nvrtc: str | None) -> None:
    """Open the library beside NVRTC: each compilation opens it anew, and of two at once one may not find it."""
    for path in Path(nvrtc).parent.glob("libnvrtc-builtins.so*") if nvrtc else ():
        ctypes.CDLL(str(path))


def _call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """Call one binding; the value or values after the status, or an exception."""
    status, *values = function(*arguments)
    if int(status) != 0:
        raise CompileError(f"NVRTC: {function.__name__} failed with {status.name}", log="")
    return values[0] if len(values) == 1 else tuple(values)


def _read(size_of: Callable[..., Any], read: Callable[..., Any], program: Any) -> bytes:
    # The buffer must be mutable: the interpreter shares short immutable bytes objects, and NVRTC writes into this one.
    buffer = bytearray(_call(size_of, program))
    _call(read, program, buffer)
    return bytes(buffer)


def _compile(
    source: str, arch: Architecture, name: str, kind: Kind, headers: Headers, options: tuple[str, ...] = ()
) -> Compiled:
    nvrtc = _load()
    check_nvrtc(arch, nvrtc_version(), tuple(_call(nvrtc.nvrtcGetSupportedArchs)))
    started = time.perf_counter()
    program = _create(nvrtc, source, name, headers)
    try:
        log = _run(nvrtc, program, options or flags(arch, kind))
        if log.failed:
            raise CompileError(_failure(source, arch, name, kind, headers, log.text), log.text)
        code = _product(nvrtc, program, kind)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if kind == "ptx":
        code = _portable_ptx(code, [name, *(header for header, _ in headers)])
    return Compiled(
        kind=kind,
        code=code,
        log=log.text,
        seconds=time.perf_counter() - started,
        nvrtc_version=_dotted_version(),
        resources=parse_resources(log.text, len(code)) if kind == "cubin" else {},
    )


def _create(nvrtc: Any, source: str, name: str, headers: Headers) -> Any:
    texts = [text.encode() for _, text in headers]
    names = [header.encode() for header, _ in headers]
    return _call(nvrtc.nvrtcCreateProgram, source.encode(), name.encode(), len(headers), texts, names)


@dataclass(frozen=True)
class _Log:
    failed: bool
    text: str


def _run(nvrtc: Any, program: Any, options: Sequence[str]) -> _Log:
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    text = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    decoded = text.rstrip(b"\0").decode(errors="replace").strip()
    if int(status) != 0 and not decoded:
        decoded = f"{status.name} with options {' '.join(options)}"
    return _Log(failed=int(status) != 0, text=decoded)


def _product(nvrtc: Any, program: Any, kind: Kind) -> bytes:
    if kind == "cubin":
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    return _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0")


def _portable_ptx(ptx: bytes, names: Sequence[str]) -> bytes:
    """NVRTC prefixes the names of in-memory files with the current directory; take it off again."""

    def shorten(match: re.Match[str]) -> str:
        known = [name for name in names if match[2].endswith("/" + name)]
        return f'{match[1]}{max(known, key=len, default=match[2])}"'

    return _FILE_DIRECTIVE.sub(shorten, ptx.decode()).encode()


def _failure(source: str, arch: Architecture, name: str, kind: Kind, headers: Headers, log: str) -> str:
    """A message with the compiler's log and the lines around the first error."""
    excerpt = _excerpt_of_text(log, {**dict(headers), name: source})
    if not excerpt and kind == "cubin" and (match := _PTXAS_ERROR_LINE.search(log)):
        as_assembled = (f"-arch={arch.virtual}", *COMMON_FLAGS)
        ptx = _compile(source, arch, name, "ptx", headers, as_assembled).text
        excerpt = f"PTX around line {match['line']}:\n{numbered_lines(ptx, int(match['line']))}"
    return f"NVRTC {_dotted_version()} could not compile {name} for {arch.code}:\n{log}\n{excerpt}".rstrip()


def _excerpt_of_text(log: str, texts: Mapping[str, str]) -> str:
    match = _ERROR_LINE.search(log)
    if match is None or match["file"] not in texts:
        return ""
    return f"{match['file']} around line {match['line']}:\n{numbered_lines(texts[match['file']], int(match['line']))}"


def numbered_lines(text: str, line: int, around: int = 4) -> str:
    """The lines near `line` with their numbers, the line itself marked."""
    lines = text.splitlines()
    first, last = max(1, line - around), min(len(lines), line + around)
    return "\n".join(f"{'>' if n == line else ' '}{n:5d} | {lines[n - 1]}" for n in range(first, last + 1))
