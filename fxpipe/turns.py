"""`Turns`: whose turn it is to run a model, where several pipelines or threads want to.

While a step runs, its stages are bound to the user's modules, and forwards change copies in place of
their buffers. So a module belongs to one step at a time, whichever pipeline and thread it comes from:

    thread 1   pipe.step ────────────────────►
    thread 2   (same model)   waits ·········· other.step ──────►
    thread 3   (another model)   third.step ─────────►

Pipelines that were given one backend take turns too. A step may call another pipeline, in a loss or
a hook; it then holds two models. What would wait for itself, or for a thread that waits for it, is
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Final

from torch import nn

from fxpipe import interrupts
from fxpipe.capture.patches import active
from fxpipe.errors import CaptureError, ExecutionError

_POLL: Final = 0.1
"""Seconds after which a turn that waits looks for an interrupt."""
_CHANGED: Final = threading.Condition()
_TAKEN: Final[list[_Turn]] = []
"""The turns of all threads that run, guarded by `_CHANGED`."""
_WAITING: Final[list[_Turn]] = []
"""Those that wait."""
_RUNNING: Final[ContextVar[tuple[_Turn, ...]]] = ContextVar("fxpipe_running", default=())
"""The turns that the current context is in: the workers of a step run in its caller's."""


class _Turn:
    """One step of a model.

    Attributes:
        within: the turns around it, outermost first.
        waits_for: the turn that must end first; None if it runs.
    """

    def __init__(self, model: nn.Module, backend: object, within: tuple[_Turn, ...]) -> None:
        self._model = model
        self._backend = backend
        self.within = within
        self.waits_for: _Turn | None = None

    def shares(self, other: _Turn) -> bool:
        """Whether the two have any module in common."""
        return self._model is other._model or not self._modules.isdisjoint(other._modules)

    @cached_property
    def _modules(self) -> frozenset[nn.Module]:
        return frozenset(self._model.modules())

    def wait(self) -> None:
        """Wait until no step of another thread has a module of this one's model, or its backend."""
        with _CHANGED:
            _WAITING.append(self)
            try:
                while (other := self._in_the_way()) is not None:
                    self.waits_for = other
                    self._refuse_circles(other)
                    _CHANGED.wait(_POLL)
                    interrupts.check()
            finally:
                self.waits_for = None
                _WAITING.remove(self)
            _TAKEN.append(self)

    def _in_the_way(self) -> _Turn | None:
        others = (other for other in _TAKEN if other not in self.within)
        return next((o for o in others if o._backend is self._backend or self.shares(o)), None)

    def _refuse_circles(self, other: _Turn) -> None:
        """Raise if what must end first waits, by a step inside of it, for a step around this one."""
        ahead = [other]
        for one in ahead:
            if one in self.within:
                raise ExecutionError(
                    "two pipelines call each other from inside their steps, in two threads: each "
                    "would wait for the other's end. Call the model itself (pipe.module) there"
                )
            inner = [turn.waits_for for turn in _WAITING if one in turn.within]
            ahead += [turn for turn in inner if turn is not None and turn not in ahead]

    def end(self) -> None:
        """Let others come."""
        with _CHANGED:
            _TAKEN.remove(self)
            _CHANGED.notify_all()


class Turns:
    """The turns of one pipeline.

    Args:
        model: that it runs.
        backend: that it runs it on.
    """

    def __init__(self, model: nn.Module, backend: object) -> None:
        self._model = model
        self._backend = backend
        self._closed = False

    @contextmanager
    def take(self) -> Iterator[None]:
        """One turn after another. Ctrl-C comes in the user's code and where the runtime asks for it.

        Raises:
            ExecutionError: if the pipeline is closed, or this is called from inside a step of a
                pipeline with the same modules, or from one that it would have to wait for forever.
            CaptureError: if a model is being recorded that has the pipeline in it.
        """
        if active() is not None:
            raise CaptureError(
                "a pipeline is a part of the model that is being recorded: compile the whole model "
                "with the pipeline's own model (pipe.module) in its place"
            )
        if self._closed:
            raise ExecutionError("this pipeline is closed: make a new one with fxpipe.compile")
        turn = _Turn(self._model, self._backend, _RUNNING.get())
        if any(turn.shares(outer) for outer in turn.within):
            raise ExecutionError(
                "a pipeline cannot be called from inside its own step (its loss, a hook, a stage), "
                "nor from inside another pipeline's over the same modules: call the model itself "
                "(pipe.module) there"
            )
        with interrupts.held() as interrupt, interrupt.allowed():
            turn.wait()
            token = _RUNNING.set((*turn.within, turn))
            try:
                yield
            finally:
                _RUNNING.reset(token)
                turn.end()

    def close(self) -> None:
        """Let there be no more."""
        self._closed = True
