"""Compile through the cache: the same text is compiled once per machine and NVRTC, then read back in milliseconds.

Joins nvrtc.py and cache.py; a failed compile raises and stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gemmgen.runtime import nvrtc
from gemmgen.runtime.architectures import Architecture, ArchitectureLike, resolve
from gemmgen.runtime.cache import Entry, MemoryCache, content_key, default_cache
from gemmgen.runtime.headers import Headers, package_headers
from gemmgen.runtime.nvrtc import Compiled, Kind
from gemmgen.runtime.resources import Resources

FORMAT = "1"  # of the entry's files; raise it when they change


def cached_ptx(source: str, arch: ArchitectureLike, name: str, cache: MemoryCache | None = None) -> Compiled:
    """`nvrtc.compile_ptx` through the cache."""
    return _cached(source, resolve(arch), name, "ptx", cache)


def cached_cubin(source: str, arch: ArchitectureLike, name: str, cache: MemoryCache | None = None) -> Compiled:
    """`nvrtc.compile_cubin` through the cache."""
    return _cached(source, resolve(arch), name, "cubin", cache)


def cache_key(source: str, arch: Architecture, kind: Kind, headers: Headers) -> str:
    """Everything the product depends on: text, headers, options, compiler. The name is only for messages."""
    flattened = [part for header in headers for part in header]
    return content_key(FORMAT, source, *flattened, *nvrtc.flags(arch, kind), nvrtc.nvrtc_identity(), kind)


def _cached(source: str, arch: Architecture, name: str, kind: Kind, cache: MemoryCache | None) -> Compiled:
    headers = package_headers()
    compile_kind = nvrtc.compile_ptx if kind == "ptx" else nvrtc.compile_cubin

    def build() -> Entry:
        return _pack(compile_kind(source, arch, name, headers))

    chosen = default_cache() if cache is None else cache
    return _unpack(kind, chosen.fetch(cache_key(source, arch, kind, headers), build))


def _pack(compiled: Compiled) -> Entry:
    facts = {
        "log": compiled.log,
        "seconds": compiled.seconds,
        "nvrtc_version": compiled.nvrtc_version,
        "resources": {entry: row.to_dict() for entry, row in compiled.resources.items()},
    }
    return {f"kernel.{compiled.kind}": compiled.code, "facts.json": json.dumps(facts, sort_keys=True).encode()}


def _unpack(kind: Kind, entry: Entry) -> Compiled:
    facts = json.loads(entry["facts.json"])
    return Compiled(
        kind=kind,
        code=entry[f"kernel.{kind}"],
        log=facts["log"],
        seconds=facts["seconds"],
        nvrtc_version=facts["nvrtc_version"],
        resources=_rows(facts["resources"]),
    )


def _rows(resources: Mapping[str, Mapping[str, int]]) -> dict[str, Resources]:
    return {entry: Resources(**row) for entry, row in resources.items()}
