"""Models of the pipelining literature as plain modules: skips are Python variables, nothing is split."""
