"""Measurements: each file is one experiment, run as ``python -m benchmarks.<name> [--quick]``."""
