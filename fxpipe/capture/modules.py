"""Module calls while recording: a node if the module is a leaf, a span if it is looked through."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.utils import parametrize

from fxpipe.capture import draws, remedies
from fxpipe.capture.arguments import Arguments
from fxpipe.capture.containers import tensors
from fxpipe.capture.draws import PythonDraws
from fxpipe.capture.fallback import (
    CountDrawsError,
    KeepWholeError,
    LookInsideError,
    RefusedError,
    StoresError,
)
from fxpipe.capture.leaves import (
    is_layer,
    leaf_reason,
    parameter_share,
    takes_fast_path,
)
from fxpipe.capture.spans import (
    Frame,
    calls_modules,
    outputs_of,
)
from fxpipe.ir.capture import Span

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder

Run = Callable[..., Any]

RANDOM_SHARE: Final = 0.5
"""A module with more than this share of the parameters is not kept whole for drawing numbers that
torch does not see: there would be nothing left to cut."""


class Modules:
    """The module calls of one recording.

    Attributes:
        spans: of the calls looked through, in order of their start; None while in progress.
        paths: of the model's modules, by id.
        draws: what is drawn from ``random`` and NumPy.
    """

    draws: PythonDraws

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._script, self._values = recorder.script, recorder.values
        self.spans: list[Span | None] = []
        self._cached = parametrize._cache_enabled
        self._arguments = Arguments(self._values, recorder.model)
        self._calls: dict[str, int] = {}
        self.paths = {id(module): path for path, module in recorder.model.named_modules()}

    def call(
        self, module: nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], via: str
    ) -> Any:
        """The result of a module call, recorded.

        The code of a module that is not part of the model belongs to the module that calls it.
        """
        path = self.paths.get(id(module))
        if path is None:
            return run(*args, **kwargs)
        self._recorder.interrupts.check()
        if torch._C._are_functorch_transforms_active():
            raise self._recorder.transformed(module.forward)
        if self._script.frames:
            self._recorder.check_settings()
        self._refuse_cached_weights()
        self._refuse_backward_hooks(module, path)
        via = _as_called(module, via)
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        if self._is_leaf(module, path, (args, kwargs)):
            with self._recorder.paused():
                self._check_random()
                return self._recorder.leaf_calls.call(module, (path, call, via), run, args, kwargs)
        return self._span(Frame(path, call, module, via), run, args, kwargs)

    def _is_leaf(self, module: nn.Module, path: str, arguments: Any) -> bool:
        decisions = self._recorder.decisions
        if path in decisions.inside:
            return False
        if path in decisions.leaves:
            self._open_if_called_again(path)
            return True
        if takes_fast_path(module, arguments):
            return True
        return bool(path) and leaf_reason(module) is not None

    def _open_if_called_again(self, path: str) -> None:
        """Look into a module that keeps tensors if it is called again: it may read them there.

        Raises:
            LookInsideError: then its calls may be on several stages.
        """
        kept = self._recorder.decisions.leaves[path]
        if isinstance(kept, StoresError) and not kept.as_buffer and self._calls[path] > 1:
            reason = f"{kept.reason}, and is called again"
            raise LookInsideError(reason, path, self._script.sources.here(), remedy=remedies.STATE)

    def _refuse_backward_hooks(self, module: nn.Module, path: str) -> None:
        """Keep modules whole whose backward hooks would be lost if a cut divided them."""
        decisions = self._recorder.decisions
        if not path or is_layer(module) or path in decisions.leaves or path in decisions.inside:
            return
        if module._backward_hooks or module._backward_pre_hooks:
            source = self._script.sources.here()
            raise KeepWholeError(
                "it has backward hooks, which run around the whole module",
                path,
                source,
                remedy=remedies.BACKWARD_HOOKS,
            )

    def _refuse_cached_weights(self) -> None:
        """Keep a module whole in which `parametrize.cached` is on: no node shows it."""
        if parametrize._cache_enabled > self._cached:
            raise self._recorder.keep_whole(
                "it computes parametrized weights once for several calls",
                parametrize.cached,
                remedy=remedies.CACHED,
            )

    def begins_forward(self, module: nn.Module) -> bool:
        """Whether ``module.forward`` runs because the call in progress calls it, for the first time."""
        frame = self._script.frames[-1] if self._script.frames else None
        if frame is None or frame.module is not module or not frame.awaits_forward:
            return False
        frame.awaits_forward = False
        return True

    # -- spans ---------------------------------------------------------------------------------------

    def _span(self, frame: Frame, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._recorder.paused():
            self._check_random()
            self._open(frame, args, kwargs)
        self._script.frames.append(frame)
        try:
            try:
                result = run(*args, **kwargs)
                self._check_random()
            finally:
                self._script.frames.pop()
        except Exception:
            with self._recorder.paused():
                frame.fixed = "it raises an exception"  # which the code around it may catch
                self._close(frame, None)
            raise
        with self._recorder.paused():
            self._close(frame, result)
        return result

    def _check_random(self) -> None:
        """Refuse draws from ``random`` or NumPy in the module call in progress.

        Raises:
            KeepWholeError: if the module may stay whole.
            RefusedError: if it is most of the model.
        """
        if not self._script.frames or not self.draws.since_last():
            return
        path = self._script.frame.path
        kind = (
            RefusedError
            if parameter_share(self._recorder.model, path) > RANDOM_SHARE
            else KeepWholeError
        )
        sources, frame = self._script.sources, self._script.frame
        here = self.draws.source or sources.here() or sources.forward_of(frame.module)
        remedy = draws.remedy(self._recorder.model, path)
        self._recorder.failure = kind(draws.REASON, path, here, remedy=remedy)
        raise self._recorder.failure

    def _open(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments.open(frame, args, kwargs)
        if any(map(calls_modules, (*args, *kwargs.values()))):
            frame.fixed = "it is handed a function that calls modules"
        if any(map(_has_attributes, tensors((args, kwargs)))):
            frame.fixed = (
                "it is handed a tensor with attributes of its own, which go to no other stage"
            )
        frame.index = len(self.spans)
        frame.parent = self._script.frames[-1].index if self._script.frames else None
        frame.start = len(self._script.body)
        self.spans.append(None)

    def _close(self, frame: Frame, result: Any) -> None:
        self._arguments.close(frame, set(self._script.body[frame.start :]))
        outputs = outputs_of(result, self._values.known)
        self._values.restore_aliases(frame.aliases, {*outputs, *frame.changed})
        self.spans[frame.index] = frame.finish(self._script.body, outputs)

    def settle(self) -> None:
        """The run is over: decide how the objects that modules were handed are built anew.

        Raises:
            LookInsideError: if a leaf was handed an object that has got tensors only later: the graph
                would hand it the object with those of the recording.
            CountDrawsError: if numbers that change nothing were drawn, and others by a leaf: the stages
                would draw the others from another place on.
        """
        nodes = self._script.graph.nodes
        if self.draws.passed_over and any(node.meta.get("python_random") for node in nodes):
            raise CountDrawsError(draws.REASON, "", self._script.sources.here())
        self._recorder.leaf_calls.settle()
        self._arguments.settle(self.spans)


def _has_attributes(tensor: torch.Tensor) -> bool:
    """Whether Python has put something on a tensor (``x.mask = mask``)."""
    if type(tensor) is not torch.Tensor:
        return False
    return any(not name.startswith("_dynamo") for name in vars(tensor))  # notes of torch.compile


def _as_called(module: nn.Module, via: str) -> str:
    """How a module is called again: a ``__call__`` of its own may take other arguments."""
    has_own = via == "call" and type(module).__call__ is not nn.Module.__call__
    return "plain" if has_own else via
