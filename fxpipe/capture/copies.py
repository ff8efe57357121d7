"""Copies of a caller's tensors, which a run may write into."""

from __future__ import annotations

from typing import Any

import torch


def copied(leaf: Any) -> Any:
    """A tensor of the caller's, safe from being written into; any other value as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
