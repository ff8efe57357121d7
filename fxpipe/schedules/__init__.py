"""Schedules as data: who computes what in which order, whether that can run, and its transfers."""
