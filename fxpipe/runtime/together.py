"""A model whose stages have been spread over devices, on one device for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def together(tensors: Iterable[Tensor], device: torch.device) -> Iterator[None]:
    """Parameters and buffers on one device, so that the model runs as the user wrote it.

    Inside they have no gradients if they have been moved. What is written into moved ones is lost:
    the originals come back, with their gradients.

    Args:
        tensors: parameters and buffers; those that are on the device already are left alone.
        device: where to.
    """
    moved = []
    try:
        for tensor in tensors:
            if tensor.device != device:
                moved.append((tensor, tensor.data, tensor.grad))
                tensor.grad = None
                tensor.data = tensor.data.to(device)
        yield
    finally:
        for tensor, data, grad in moved:
            tensor.data = data
            tensor.grad = grad
