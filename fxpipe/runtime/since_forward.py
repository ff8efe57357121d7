"""What must be as the forward found it when a backward runs forwards again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fxpipe.errors import ExecutionError


class AsInForward:
    """Modes and weights that a call's forward found, for the forwards that its backward runs again.

    Between the two the caller may do anything. Without recomputation autograd itself has kept what it
    needs, and tells if it was changed.

    Args:
        model: the user's.
        written: names of parameters and buffers that the forward changes itself; each micro-batch's
            values of these are kept.
    """

    def __init__(self, model: nn.Module, written: Collection[str]) -> None:
        self._modes = [(module, module.training) for module in model.modules()]
        tensors = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        own = {tensor for name, tensor in tensors if name in written}
        self._read = [
            (name, tensor, _mark(tensor)) for name, tensor in tensors if tensor not in own
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, all modules are in the mode that the forward found them in.

        Raises:
            ExecutionError: if a tensor that the forward read is another one now.
        """
        for name, tensor, mark in self._read:
            if _mark(tensor) != mark:
                raise ExecutionError(
                    f"{name!r} has been changed since the forward: with recompute= its values are "
                    "needed until the backward. Change it after the backward, or compile with "
                    "recompute='never'"
                )
        moved = [
            (module, module.training) for module, mode in self._modes if module.training != mode
        ]
        modes = dict(self._modes)
        for module, _ in moved:
            module.training = modes[module]
        try:
            yield
        finally:
            for module, mode in moved:
                module.training = mode


def _mark(tensor: Tensor) -> tuple[int, int]:
    """Another one after every change in place, and when other data are put in.

    A recording brings weights that are spread over accelerators together, and back: what they are put
    into says nothing there.
    """
    version = 0 if tensor.is_inference() else tensor._version
    stays = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return version, tensor.data_ptr() if stays else 0
