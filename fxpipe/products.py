"""Operators that multiply with weights, whose gradients can be computed apart from those of inputs."""

from __future__ import annotations

import operator
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

LAYERS: Final = frozenset(
    {
        nn.Linear,
        *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        nn.Embedding,
    }
)
"""Layers that are one such operator."""

FUNCTIONS: Final = frozenset(
    {
        F.linear,
        *(F.conv1d, F.conv2d, F.conv3d),
        *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        F.embedding,
        *(torch.addmm, torch.mm, torch.matmul, operator.matmul, torch.bmm, torch.einsum),
    }
)

METHODS: Final = frozenset({"addmm", "mm", "matmul", "__matmul__", "bmm"})
"""The same as methods of tensors."""
