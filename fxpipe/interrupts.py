"""Ctrl-C while a model is changed for a moment: let through where nothing is torn apart by it.

An interrupt reaches Python wherever the main thread happens to be. In the middle of a recording that
may be the recorder's own book-keeping, or a function that torch calls from C++ and that must not raise
(the process would be aborted). So it comes at once only in the code of the model; elsewhere it waits
for the next place where the model calls torch or a module, or for the end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

_Handler = Callable[[int, FrameType | None], Any]

_NOT_HERE: Final = (
    str(Path(__file__).parent),
    str(Path(torch.__file__).parent),
    contextlib.__file__,
    weakref.__file__,
    str(Path(weakref.__file__).with_name("_weakrefset.py")),
)
"""Code that an interrupt must not leave in the middle: ours, torch's, and what runs for it."""


class Interrupts:
    """Says where an interrupt may come; elsewhere it waits for the end of `held`."""

    def __init__(self, before: _Handler | None = None) -> None:
        self._before = before
        self._is_open = False
        self._waiting: tuple[int, FrameType | None] | None = None

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside, an interrupt comes in the model's code, at `check`, or at the end."""
        self._is_open = True
        try:
            yield
            self.check()
        finally:
            self._is_open = False

    def check(self) -> None:
        """Let an interrupt come now that waits, if it is allowed."""
        if self._waiting is not None and self._is_open:
            self.release()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """What is called for a signal."""
        self._waiting = (number, frame)
        if self._is_open and _is_models(frame):
            self.release()

    def release(self) -> None:
        """Let an interrupt come that waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._before is not None:
            self._before(*waiting)


def _is_models(frame: FrameType | None) -> bool:
    return frame is None or not frame.f_code.co_filename.startswith(_NOT_HERE)


@contextmanager
def held() -> Iterator[Interrupts]:
    """Inside, Ctrl-C waits, but for what is `Interrupts.allowed`.

    Only the main thread is interrupted, and only there can this be told; elsewhere nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield Interrupts()
        return
    interrupts = Interrupts(before)
    signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
        interrupts.release()
