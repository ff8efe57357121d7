"""Drawings: a value goes in, a string comes out."""
