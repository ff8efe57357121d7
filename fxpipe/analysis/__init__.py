"""Facts about a capture: what it changes, shares, keeps alive and costs. The graph is never changed."""
