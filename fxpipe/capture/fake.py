"""Recording on tensors without data: no memory, no arithmetic, and models on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)

from fxpipe.capture import remedies
from fxpipe.capture.fallback import Decisions, FallbackError
from fxpipe.capture.modules import Run
from fxpipe.capture.probe import probe
from fxpipe.capture.recorder import Recorder
from fxpipe.capture.slices import SliceRunner
from fxpipe.capture.watch import storage_key
from fxpipe.fake_model import FakeModel
from fxpipe.originals import Originals

_REFUSALS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


class FakeRecorder(Recorder):
    """A recorder whose model runs on fake tensors.

    Args:
        fakes: the model's fake parameters, in place.

    Attributes:
        inputs: placeholder → the real input, for decisions that depend on inputs.
    """

    def __init__(
        self,
        model: nn.Module,
        decisions: Decisions,
        fakes: FakeModel,
        originals: Originals | None = None,
    ) -> None:
        super().__init__(model, decisions, originals)
        self._fakes = fakes
        for fake, real in fakes.real_of.items():
            name = self.script.tensor_names.get(fake)
            if name is not None:
                self.script.tensor_names[id(real)] = name
        # A leaf that needs data writes into the real ones.
        for name, held in (*model.named_parameters(), *model.named_buffers()):
            self.script.buffer_names[storage_key(fakes.real_of.get(id(held), held))] = name
        self.inputs: dict[torch.fx.Node, torch.Tensor] = {}
        self._buffers = {
            name: fakes.real_of[id(buffer)]
            for name, buffer in model.named_buffers(remove_duplicate=False)
            if id(buffer) in fakes.real_of  # else an earlier run has made it
        }

    def is_fake(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has no data."""
        return isinstance(tensor, FakeTensor)

    def run_leaf(
        self, module: nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The fake result of a module; learnt from a run on synthetic data if it needs data."""
        try:
            return run(*args, **kwargs)
        except FallbackError:
            raise
        except Exception as error:
            self.watch.forget()
            return probe(self._fakes, module, run, (args, kwargs), error)

    def run_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The fake result of a torch function.

        Raises:
            KeepWholeError: if the result cannot be known without data.
        """
        try:
            return func(*args, **kwargs)
        except _REFUSALS as error:
            reason = "a result cannot be known without data"
            raise self.keep_whole(reason, func, remedy=remedies.NO_DATA) from error

    def value_of(self, node: torch.fx.Node, run: Callable[[], Any]) -> Any:
        """The Python value of a node that depends on inputs alone, computed from the real inputs."""
        runner = _OnRealTensors(self.script.graph, self.model, self.script.constants, self._buffers)
        with unset_fake_temporarily():
            return runner.evaluate(node, self.inputs)


class _OnRealTensors(SliceRunner):
    """A runner that reads the model's own buffers although others are in their place."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        model: nn.Module,
        constants: Mapping[str, Any],
        buffers: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(graph, model, constants)
        self._buffers = buffers

    def attribute(self, name: str) -> Any:
        return self._buffers[name] if name in self._buffers else super().attribute(name)
