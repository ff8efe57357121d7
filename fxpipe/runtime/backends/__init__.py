"""Ways to run the ranks of a pipeline."""
