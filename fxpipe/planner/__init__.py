"""Decisions that need all the numbers: which schedule, for these costs and this memory."""
