"""Makes ``tests/reference.py`` importable from every folder of tests."""
