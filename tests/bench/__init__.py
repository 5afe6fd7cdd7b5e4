"""Measurements: `make bench`, or `python -m tests.bench ID`. Method and figures: BENCHMARKS.md."""
