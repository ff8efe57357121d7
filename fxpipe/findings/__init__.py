"""What a user wants to know of a capture, and of what a plan makes of it."""
