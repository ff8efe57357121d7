"""Ctrl-C while a model is changed for a moment: let through where nothing is torn apart by it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Says where an interrupt may come; elsewhere it waits for the end of `held`."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: tuple[int, FrameType | None] | None = None

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside, an interrupt comes at once: in the user's code."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False


@contextmanager
def held() -> Iterator[Interrupts]:
    """Inside, Ctrl-C waits, but for what is `Interrupts.allowed`.

    Only the main thread is interrupted, and only there can this be told; elsewhere nothing changes.
    """
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return

    def handle(number: int, frame: FrameType | None) -> Any:
        if interrupts._is_open:
            return before(number, frame)
        interrupts._waiting = (number, frame)
        return None

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupts._waiting is not None:
            before(*interrupts._waiting)
