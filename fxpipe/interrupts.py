"""Ctrl-C while a model is changed for a moment: let through where nothing is torn apart by it.

An interrupt reaches Python wherever the main thread happens to be. In the middle of a recording or a
step that may be our own book-keeping, or a function that torch calls from C++ and that must not raise
(the process would be aborted). So it comes at once only in the user's own code; elsewhere it waits
for the next place that asks (`check`: where a recorded model calls torch or a module, between the
actions of a step), or for the end.
"""

from __future__ import annotations

import contextlib
import signal
import sysconfig
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
_LIBRARY: Final = (sysconfig.get_path("stdlib"), "<frozen ")
_PACKAGES: Final = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
"""They may lie inside of the library's place."""


class Interrupts:
    """Says where an interrupt may come; elsewhere it waits for the end of `held`."""

    def __init__(self, before: _Handler | None = None) -> None:
        self._before = before
        owner = getattr(before, "__self__", None)
        self._users: _Handler | None = owner._users if isinstance(owner, Interrupts) else before
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
            self._release(self._users)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """What is called for a signal."""
        self._waiting = (number, frame)
        if self._is_open and _is_users(frame):
            self._release(self._users)

    def release(self) -> None:
        """Let an interrupt come that waits, or hand it on to whoever else holds them."""
        self._release(self._before)

    def _release(self, handler: _Handler | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and handler is not None:
            handler(*waiting)


def _is_users(frame: FrameType | None) -> bool:
    """Whether code of the user's is running; the standard library's belongs to who has called it."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_NOT_HERE):
            return False
        if not name.startswith(_LIBRARY) or name.startswith(_PACKAGES):
            return True
        frame = frame.f_back
    return True


_here: Interrupts | None = None
"""The innermost that holds interrupts of the main thread."""


def check() -> None:
    """Let an interrupt come now that waits, in the main thread, if it is allowed there."""
    here = _here
    if here is not None and here._waiting is not None and _is_main():
        here.check()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held() -> Iterator[Interrupts]:
    """Inside, Ctrl-C waits, but for what is `Interrupts.allowed`.

    Only the main thread is interrupted, and only there can this be told; elsewhere nothing changes.
    """
    global _here
    before = signal.getsignal(signal.SIGINT)
    if not _is_main() or not callable(before):
        yield Interrupts()
        return
    outer, interrupts = _here, Interrupts(before)
    signal.signal(signal.SIGINT, interrupts.handle)
    _here = interrupts
    try:
        yield interrupts
    finally:
        _here = outer
        signal.signal(signal.SIGINT, before)
        interrupts.release()
