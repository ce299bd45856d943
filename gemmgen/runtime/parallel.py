"""Many kernels to binaries at once, through the cache: NVRTC compiles in as many threads as ask it.

Knows the compiler and the cache; a GPU is not asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from gemmgen.runtime.architectures import Architecture
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.kernel_text import KernelText


def compile_texts(texts: Sequence[KernelText], arch: Architecture, workers: int | None = None) -> Iterator[KernelText]:
    """Compile each text for the chip; yields them as they are done, in any order.

    By default as many at a time as this process may use cores. Raises ``CompileError`` of the first that fails.
    """
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        jobs = {pool.submit(cached_cubin, text.source, arch, text.file_name): text for text in texts}
        try:
            for job in as_completed(jobs):
                job.result()
                yield jobs[job]
        finally:
            pool.shutdown(cancel_futures=True)
