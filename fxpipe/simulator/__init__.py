"""Predicted timelines: rank programs run on a clock instead of a machine."""
