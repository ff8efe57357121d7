"""What acts on parameters and gradients of all stages together."""
