"""What forwards do to the modules of the model, besides calling them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from fxpipe import ops
from fxpipe.capture import remedies
from fxpipe.capture.fallback import StoresError
from fxpipe.capture.watch import Effects

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder


class Mutations:
    """Writes down what one recording does to modules, or says which module must stay whole for it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._script, self._values = recorder.script, recorder.values

    def switch(self, module: nn.Module, training: bool) -> None:
        """A forward sets the training flag of a module.

        Raises:
            KeepWholeError: if it is another one: the module in progress does it itself, at each call.
        """
        if id(module) in self._recorder.modules.paths and module.training != training:
            raise self._recorder.keep_whole(
                "it switches modules between training and evaluation mode", remedy=remedies.MODES
            )

    def store(self, module: nn.Module, name: str, value: torch.Tensor) -> None:
        """A forward keeps a tensor on a module: that module stays whole, if it can."""
        self._store(module, name, value, ops.set_attribute)

    def register(self, module: nn.Module, name: str, value: torch.Tensor, persistent: bool) -> None:
        """A forward makes a buffer: its module stays whole, if it can."""
        self._store(module, name, value, ops.register_buffer, persistent)

    def _store(
        self,
        module: nn.Module,
        name: str,
        value: torch.Tensor,
        function: Callable[..., Any],
        *more: Any,
    ) -> None:
        """Write down that a tensor is kept.

        Raises:
            StoresError: if the module is to stay whole. The model itself cannot, nor can one whose
                tensor was found to be read outside of it, nor one of which others call a method.
        """
        path = self._recorder.modules.paths.get(id(module))
        if path is None or _holds(module, name, value):
            return
        as_buffer = name in module._buffers or function is ops.register_buffer
        if self._is_in_progress(module) and path not in self._recorder.decisions.inside:
            reason = f"it keeps a tensor in its attribute {name!r}"
            operation = f"self.{name} = …"
            here = self._script.sources.here()
            error = StoresError(reason, path, here, operation, remedy=remedies.STATE)
            error.as_buffer = as_buffer
            raise error
        effects = Effects()
        if as_buffer:
            full = f"{path}.{name}" if path else name
            old = module._buffers.get(name)
            if old is not None and old not in self._values.left:
                self._values.node(old)  # the model may have it in hand: it is read before it goes
            self._script.replace_buffer(full, old, value, effects)
        args = (self._script.constant(module), name, self._values.argument(value), *more)
        self._script.emit("call_function", function, args, effects=effects)

    def _is_in_progress(self, module: nn.Module) -> bool:
        """Whether a call of a submodule runs now."""
        return any(frame.path and frame.module is module for frame in self._script.frames)

    def swapped(self, module: nn.Module) -> None:
        """``functional_call``: a module is called with other tensors in place of its own.

        Raises:
            KeepWholeError: if it is part of the model: no node would show them, as the nodes name the
                module, or its own tensors.
        """
        if any(id(inner) in self._recorder.modules.paths for inner in module.modules()):
            raise self._recorder.keep_whole(
                "it calls a module with other parameters than the module's own",
                functional_call,
                remedy=remedies.SWAPPED,
            )


def _holds(module: nn.Module, name: str, value: torch.Tensor) -> bool:
    """Whether a module has that very tensor there: ``self.count += 1`` puts it back where it was."""
    return module._buffers.get(name) is value or module.__dict__.get(name) is value
