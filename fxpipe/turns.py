"""`Turns`: one call of a pipeline after another, and none from inside of itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from fxpipe.capture.patches import active
from fxpipe.errors import CaptureError, ExecutionError

_RUNNING: Final[ContextVar[frozenset[int]]] = ContextVar("fxpipe_running", default=frozenset())
"""The turns that the current context is in."""


class Turns:
    """Whose turn it is to run a pipeline."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._closed = False

    @contextmanager
    def take(self) -> Iterator[None]:
        """One turn after another, whichever threads they come from.

        Raises:
            ExecutionError: if the pipeline is closed, or this is called from one of its own stages.
            CaptureError: if a model is being recorded that has the pipeline in it.
        """
        if active() is not None:
            raise CaptureError(
                "a pipeline is a part of the model that is being recorded: compile the whole model "
                "with the pipeline's own model (pipe.module) in its place"
            )
        running = _RUNNING.get()
        if id(self) in running:
            raise ExecutionError(
                "a pipeline cannot be called from inside its own step (its loss, a hook, a stage): "
                "call the model itself (pipe.module) there"
            )
        if self._closed:
            raise ExecutionError("this pipeline is closed: make a new one with fxpipe.compile")
        with self._lock:
            token = _RUNNING.set(running | {id(self)})
            try:
                yield
            finally:
                _RUNNING.reset(token)

    def close(self) -> None:
        """Let there be no more."""
        self._closed = True
