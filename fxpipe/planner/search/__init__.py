"""The search for a schedule: candidates, bounds, and moves that make a candidate better."""
