"""Pipelines under the virtual accelerator: no hazard as they are, a report for each call left out."""
