"""A clock per host thread, merged where one thread hands something to another.

Threads hand over by starting, by joining and through queues: under `watched` these carry the clock
along. A thread that learns of work in any other way races, and is reported.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.virtual.clocks import Actor

_here = threading.local()


def host() -> Actor:
    """The calling thread as an actor."""
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is None:
        actor = _here.actor = Actor(f"thread {threading.current_thread().name}")
    return actor


class WatchedQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """A queue whose items bring what the giver knew."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        host().act("put")
        super().put((host().snapshot(), item), block, timeout)

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        clock, item = super().get(block, timeout)
        host().learn(clock)
        return item

    def get_nowait(self) -> Any:
        return self.get(block=False)


class _WatchedThread(threading.Thread):
    """What `threading.Thread` does under `watched`; only its methods are used."""

    inside: Callable[[], AbstractContextManager[None]]

    def start(self) -> None:
        host().act("start")
        self._known_at_start = host().snapshot()
        _start(self)

    def run(self) -> None:
        actor = host()
        actor.learn(getattr(self, "_known_at_start", {}))
        with _WatchedThread.inside():
            _run(self)
        actor.act("end")
        self._known_at_end = actor.snapshot()

    def join(self, timeout: float | None = None) -> None:
        _join(self, timeout)
        if not self.is_alive():
            host().learn(getattr(self, "_known_at_end", {}))


_start, _run, _join = threading.Thread.start, threading.Thread.run, threading.Thread.join


@contextmanager
def watched(inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Threads started and queues made in here are watched; each thread runs within ``inside()``."""
    plain = queue.SimpleQueue
    users = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "fxpipe" and getattr(module, "SimpleQueue", None) is plain
    ]
    thread = threading.Thread
    before = (thread.start, thread.run, thread.join)
    _WatchedThread.inside = staticmethod(inside)
    try:
        thread.start = _WatchedThread.start  # type: ignore[method-assign]
        thread.run = _WatchedThread.run  # type: ignore[method-assign]
        thread.join = _WatchedThread.join  # type: ignore[method-assign]
        for module in (queue, *users):
            module.SimpleQueue = WatchedQueue  # type: ignore[attr-defined]
        yield
    finally:
        thread.start, thread.run, thread.join = before  # type: ignore[method-assign]
        for module in (queue, *users):
            module.SimpleQueue = plain  # type: ignore[attr-defined]
