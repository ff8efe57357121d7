"""Capture: a user's module, run once and written down as a torch.fx graph."""
