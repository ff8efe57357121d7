"""Lets tensors say which virtual device they are on, and be moved to the host by its name.

A virtual device is called ``cpu:1``, and to torch that is the CPU: ``tensor.device`` would say so, and
``tensor.to("cpu")`` would do nothing. Moves to a virtual device need no help, as torch makes a copy;
but `torch.tensor` makes its result unseen, and has to be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.virtual.memory import HOST

if TYPE_CHECKING:
    from tests.virtual.accelerator import VirtualAccelerator

_plain: Any = torch._C.TensorBase


@contextmanager
def device_names(accelerator: VirtualAccelerator) -> Iterator[None]:
    """Inside, tensors and `torch.tensor` know the accelerator, on every thread."""

    def device(tensor: Tensor) -> torch.device:
        real: torch.device = _plain.device.__get__(tensor)
        if real != HOST or not accelerator.is_looking:
            return real
        return accelerator.device_of(tensor)

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        told = [x for x in (*args, *kwargs.values()) if not isinstance(x, Tensor)]
        if any(x in ("cpu", HOST) for x in told) and _may_move(tensor):
            tensor = accelerator.copy(tensor, HOST)
        moved: Tensor = _plain.to(tensor, *args, **kwargs)
        return moved

    def _may_move(tensor: Tensor) -> bool:
        return not tensor.requires_grad and tensor.device not in (HOST, None)

    def tensor_of(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        made: Tensor = plain_tensor(*args, **kwargs)
        return made if device is None else made.to(device)

    plain_tensor, torch.tensor = torch.tensor, tensor_of
    Tensor.device = property(device)  # type: ignore[assignment]
    Tensor.to = to  # type: ignore[assignment]
    Tensor.cpu = lambda tensor: to(tensor, HOST)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.tensor = plain_tensor
        del Tensor.device, Tensor.to, Tensor.cpu
