"""Many kernels to binaries at once, in processes that share the disk cache with this one.

Knows the compiler and the cache; a GPU is not asked.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from gemmgen.runtime.architectures import Architecture
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.kernel_text import KernelText


def compile_texts(texts: Sequence[KernelText], arch: Architecture, workers: int | None = None) -> Iterator[str]:
    """Compile each text for the chip; yields the names of kernels as they are done, in any order.

    By default as many processes as this one may use cores. Raises ``CompileError`` of the first that fails.
    """
    count = min(workers or len(os.sched_getaffinity(0)), len(texts))
    if count <= 1:
        for text in texts:
            yield _compile(text.source, arch, text.entry, text.file_name)
        return
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_compile, text.source, arch, text.entry, text.file_name) for text in texts]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _compile(source: str, arch: Architecture, entry: str, file_name: str) -> str:
    cached_cubin(source, arch, file_name)
    return entry
