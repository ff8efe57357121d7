"""Calls of modules that are not looked into: a node each, with all that it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from fxpipe.capture import draws, remedies
from fxpipe.capture.containers import tensors
from fxpipe.capture.fallback import KeepWholeError, LookInsideError
from fxpipe.capture.leaves import common_path, is_layer
from fxpipe.capture.shadows import on_meta
from fxpipe.capture.spans import changed_argument, mutable_arguments
from fxpipe.capture.values import Dependence
from fxpipe.capture.watch import Effects
from fxpipe.held import Held

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder


class LeafCalls:
    """The calls of leaves in one recording.

    Attributes:
        held: what the modules held when the run began.
    """

    held: Held

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._script, self._values = recorder.script, recorder.values
        self._running: str | None = None
        self._handed: list[tuple[str, str, list[tuple[Any, list[int]]]]] = []

    def call(
        self,
        module: nn.Module,
        place: tuple[str, int, str],
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of the call; `place`: the module's path, the call's number, and how it is called.

        Raises:
            LookInsideError: if the module is to be looked into after all.
            KeepWholeError: if one around it is to stay whole.
        """
        path, call, via = place
        if path in self._recorder.decisions.leaves:
            self._refuse_shared_state(module, path, (args, kwargs))
        given = tuple(self._values.argument(value, path) for value in args)
        named = {name: self._values.argument(value, path) for name, value in kwargs.items()}
        sized = self._values.is_sized_by_data(_shaping(module, args, kwargs))
        objects = mutable_arguments((args, kwargs))
        held = _buffers(module, path)
        self._running = path
        try:
            with (
                self._recorder.watch.measure() as effects,
                self._recorder.modules.draws.leaf() as drew,
            ):
                result = self._recorder.run_leaf(module, run, args, kwargs)
        finally:
            self._running = None
        self._note_buffers(module, path, held, effects)
        self._refuse_changed(objects, path)
        scope = f"{path}#{call}"
        node = self._script.emit("call_module", path, given, named, result, effects, scope)
        node.meta["via"] = via
        self._describe(node, module, path, drew.answer)
        self._values.bind(result, node, Dependence.WEIGHTS, sized)
        if sized and is_layer(module):
            self._recorder.shadows.follow(on_meta(module), args, kwargs, result)
        if any(not isinstance(value, list | dict) for value, _ in objects):
            self._handed.append((path, self._script.sources.here(), objects))
        return result

    def hide(self, result: Any) -> None:
        """Remember tensors that a module inside the running leaf returned: a hook may leak them."""
        if self._running is not None:
            for tensor in tensors(result):
                self._values.hidden.setdefault(id(tensor), (tensor, self._running))

    def settle(self) -> None:
        """The run is over: see whether leaves can be handed what they were handed.

        Raises:
            LookInsideError: if one was handed an object that has got tensors only later: the graph
                would hand it the object with those of the recording.
        """
        for path, here, objects in self._handed:
            changed = changed_argument(objects)
            if changed is not None and not isinstance(changed, list | dict):
                reason = f"it is handed a {type(changed).__name__} that changes afterwards"
                raise LookInsideError(reason, path, here, remedy=remedies.ARGUMENT)

    def _describe(self, node: torch.fx.Node, module: nn.Module, path: str, drew: bool) -> None:
        """Note what the call of a leaf does besides computing; `drew`: numbers not of torch's."""
        whole = self._recorder.decisions.leaves.get(path)
        if whole is not None:
            kept = self._kept(module)
            node.meta["keeps"] = bool(kept)
            for tensor in kept:
                self._values.hidden.setdefault(id(tensor), (tensor, path))
        node.meta["statistics"] = _resting_statistics(module, path)
        if drew or (whole is not None and whole.reason == draws.REASON):
            node.meta["python_random"] = True
        self._values.changed_by_modules.update(node.meta["buffers"])

    def _note_buffers(
        self, module: nn.Module, path: str, held: dict[str, torch.Tensor], effects: Effects
    ) -> None:
        """Note the buffers that a leaf has put in place of those that it held."""
        for name, buffer in _buffers(module, path).items():
            if buffer is not held.get(name):
                self._script.replace_buffer(name, held.get(name), buffer, effects)
                self._values.hidden[id(buffer)] = (buffer, path)

    def _refuse_changed(self, objects: list[tuple[Any, list[int]]], path: str) -> None:
        """Look into a leaf that changes an object it is handed: no node would show that."""
        changed = changed_argument(objects)
        if changed is not None:
            reason = f"it changes a {type(changed).__name__} that it is handed"
            here = self._script.sources.here()
            raise LookInsideError(reason, path, here, remedy=remedies.ARGUMENT)

    def _refuse_shared_state(self, module: nn.Module, path: str, given: Any) -> None:
        """Keep a module whole together with those that hand it tensors in objects they have in common.

        Raises:
            KeepWholeError: if there is such a tensor: the graph does not show that it is handed over.
        """
        seen = {id(tensor) for tensor in tensors(given)}
        for tensor in _held(module):
            made = self._maker(tensor)
            if id(tensor) in seen or made is None or f"{made}.".startswith(f"{path}."):
                continue
            raise KeepWholeError(
                f"{path!r}, which stays whole, holds an object in which another module keeps a tensor, "
                "and may read it there",
                common_path(path.rpartition(".")[0], made),
                self._script.sources.here(),
                remedy=remedies.SHARED,
            )

    def _maker(self, tensor: torch.Tensor) -> str | None:
        """The module that made a tensor, in this run or the one before."""
        if tensor in self._values.left:
            return self._values.left.maker(tensor)
        return self._values.maker(tensor) if self._is_new(tensor) else None

    def _kept(self, module: nn.Module) -> list[torch.Tensor]:
        """Tensors that a module holds now, but did not when the run began."""
        return [tensor for tensor in _held(module) if self._is_new(tensor)]

    def _is_new(self, tensor: torch.Tensor) -> bool:
        return tensor not in self.held and id(tensor) not in self._script.tensor_names


def _held(module: nn.Module) -> list[torch.Tensor]:
    return Held(value for inner in module.modules() for value in vars(inner).values()).tensors


def _shaping(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the shapes of a leaf's results may depend on.

    A packed sequence comes back packed; the final states beside it have one item a row.
    """
    given = (*args, *kwargs.values())
    if isinstance(module, nn.RNNBase):
        return [value for value in given if not isinstance(value, PackedSequence)]
    return given


def _resting_statistics(module: nn.Module, path: str) -> tuple[str, ...]:
    """Running statistics of batch norms that are in evaluation: training would change them."""
    return tuple(
        f"{inner_path}.{name}" if inner_path else name
        for inner_path, inner in module.named_modules(prefix=path)
        if isinstance(inner, nn.modules.batchnorm._NormBase) and not inner.training
        for name in ("running_mean", "running_var")
        if inner._buffers.get(name) is not None
    )


def _buffers(module: nn.Module, path: str) -> dict[str, torch.Tensor]:
    """All buffers inside a module, by name in the model."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, inner in module.named_modules(prefix=path, remove_duplicate=False)
        for name, buffer in inner._buffers.items()
        if buffer is not None
    }
