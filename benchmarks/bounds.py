"""What bounds problems that are drawn at random. Imports nothing, so that pages can say it."""

MOST_ROWS, MOST_COLUMNS, GRAIN = 16384, 32768, 64
"""m is log-uniform from 1, n and k are multiples of the grain."""
MOST_PRODUCTS, MOST_ELEMENTS = 2**38, 2**29
"""Bounds on m * n * k and on the elements of each matrix: under a millisecond, and a few GiB in float64."""
