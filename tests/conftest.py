"""Makes ``tests/reference.py`` importable from every folder of tests; property tests are not timed."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
