"""The zoo of real models through fxpipe and through other front ends: ``python -m benchmarks.zoo``."""
