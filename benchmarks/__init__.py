"""Benchmarks: `python -m benchmarks.suites.NAME`, from the root of the repository."""
