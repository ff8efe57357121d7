"""The benchmark models rewritten by hand for other libraries."""
