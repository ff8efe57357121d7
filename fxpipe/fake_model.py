"""A model's parameters and buffers as tensors without data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

_LOG: Final = logging.getLogger("torch._subclasses.fake_tensor")


class FakeModel:
    """Parameters and buffers of a model, replaced by fake ones while the context is entered.

    What cannot run on fake tensors raises an error, which is dealt with; torch's own log of it, with a
    stack trace for each, stays silent.
    """

    def __init__(self, model: nn.Module) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._registries = _registries(model)
        self._real: list[dict[str, torch.Tensor | None]] = []
        self._fakes: dict[int, torch.Tensor] = {}
        self.real_of: dict[int, torch.Tensor] = {}
        self._silence = _Silence()

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor of the same shape; always the same one for the same tensor."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fakes:
            made = self.mode.from_tensor(tensor, static_shapes=True)
            self._fakes[id(tensor)] = made
            self.real_of[id(made)] = tensor
        return self._fakes[id(tensor)]

    def __enter__(self) -> FakeModel:
        self._real = [dict(registry) for registry in self._registries]
        _LOG.addFilter(self._silence)
        try:
            for registry in self._registries:
                for name, tensor in registry.items():
                    if tensor is not None:
                        registry[name] = self.fake(tensor)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for registry, real in zip(self._registries, self._real, strict=True):
            registry.update(real)
        _LOG.removeFilter(self._silence)

    @contextmanager
    def real(self, module: nn.Module) -> Iterator[None]:
        """Inside, a module has its own parameters and buffers back, and no fake mode is active."""
        registries = _registries(module)
        now = [dict(registry) for registry in registries]
        with unset_fake_temporarily():
            try:
                for registry in registries:
                    for name, tensor in registry.items():
                        if tensor is not None:
                            registry[name] = self.real_of.get(id(tensor), tensor)
                yield
            finally:
                for registry, content in zip(registries, now, strict=True):
                    registry.update(content)


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return False


def _registries(model: nn.Module) -> list[dict[str, Any]]:
    """The dicts of parameters and buffers of all modules, but for scripted ones: theirs are fixed."""
    return [
        registry
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for registry in (module.__dict__["_parameters"], module.__dict__["_buffers"])
    ]
