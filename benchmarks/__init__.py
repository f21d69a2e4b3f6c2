"""Benchmark suites and the records that they leave under ``results/``. See README.md."""
