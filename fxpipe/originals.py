"""Parameters that forward writes into, such as a codebook of moving averages: put back."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import nn
from torch.nn.parameter import is_lazy


class Originals:
    """The parameters of a model, put back at the end.

    All of them by identity of their memory; by value those that are `written`, and those of which
    `about_to_write` was told. Copying all would take as much memory again, and hardly any model
    writes into one.

    Args:
        model: its parameters are kept.
        written: names, those of buffers among them are left out.
    """

    def __init__(self, model: nn.Module, written: Iterable[str] = ()) -> None:
        self._memory = [(each, each.data) for each in model.parameters() if _has_memory(each)]
        self._values: dict[nn.Parameter, torch.Tensor] = {}
        self._sharing: dict[int, list[nn.Parameter]] | None = None
        named = dict(model.named_parameters(remove_duplicate=False))
        for name in written:
            if name in named and _has_memory(named[name]):
                self._keep(named[name])

    def about_to_write(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep a copy of the parameters whose memory these tensors share."""
        if self._sharing is None:
            self._sharing = {}
            for parameter, _ in self._memory:
                self._sharing.setdefault(storage_key(parameter), []).append(parameter)
        for tensor in tensors:
            for parameter in self._sharing.get(storage_key(tensor), ()):
                self._keep(parameter)

    def _keep(self, parameter: nn.Parameter) -> None:
        if parameter not in self._values:
            self._values[parameter] = parameter.detach().clone()

    def __enter__(self) -> Originals:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.put_back()

    def put_back(self) -> None:
        """The parameters as they were."""
        for parameter, memory in self._memory:
            if parameter.data_ptr() != memory.data_ptr():  # ``parameter.data = …``
                parameter.data = memory
        for parameter, value in self._values.items():
            if not torch.equal(parameter, value):
                parameter.data.copy_(value)


def _has_memory(parameter: nn.Parameter) -> bool:
    """Whether it is a plain one: not on the meta device, not lazy, no wrapper around other tensors."""
    return not (parameter.is_meta or is_lazy(parameter)) and type(parameter.data) is torch.Tensor


def storage_key(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common, as long as one of them lives."""
    with torch._C.DisableTorchFunction():  # a recording in progress does not take this for a use
        if tensor.layout is not torch.strided:
            return id(tensor)
        try:
            return int(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # wrappers around other tensors have none
            return id(tensor)
