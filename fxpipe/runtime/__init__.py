"""Runs the programs of the ranks: the only package with threads, streams and processes."""
