"""Makes ``tests/reference.py`` importable from every folder of tests, and random inputs repeatable.

Each test draws from a generator seeded with its own name, so its numbers depend neither on the tests before it nor on
how tests are spread over processes, and a failure comes back. ``GEMMGEN_TEST_SEED=7 make test`` draws others, also in
property tests.
"""

from __future__ import annotations

import os
import random
import zlib

import pytest
import torch
from hypothesis import settings

SEED = os.environ.get("GEMMGEN_TEST_SEED", "")

settings.register_profile("untimed", deadline=None, derandomize=not SEED)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _repeatable_inputs(request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(f"{SEED}{request.node.nodeid}".encode())
    torch.manual_seed(seed)
    random.seed(seed)
