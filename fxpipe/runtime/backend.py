"""Where ranks run and how values get from one to another: the protocols `Backend` and `Transport`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fxpipe.ir.action import Action, Payload


@dataclass(frozen=True, slots=True)
class Route:
    """A way that values take, one per micro-batch: from a stage on one rank to one on another."""

    payload: Payload
    value: str
    source: int
    target: int
    source_rank: int
    target_rank: int


RankMain: TypeAlias = Callable[[], Generator[Action, None, None]]
"""Runs one rank's actions. It yields an action only if that must wait for a value not there yet."""

Surroundings: TypeAlias = Callable[[], AbstractContextManager[None]]
"""The caller's state that belongs to a thread (grad mode, …), to be entered on another thread."""


class Cancelled(BaseException):
    """Another rank failed: this one ends. It never leaves the runtime."""


class Stopped(BaseException):
    """Carries a StopIteration of the user's out of a rank's generator, which cannot raise one itself."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


class Transport(Protocol):
    """Hands values over, for one step. A route is given by its index."""

    failed: bool
    """Whether the step has failed: the ranks end before their next action."""

    def send(self, route: int, micro_batch: int, value: Any) -> None:
        """Put a value on its way; it does not wait."""
        ...

    def can_receive(self, route: int, micro_batch: int) -> bool:
        """Whether `receive` may be called now (it may wait, if the backend lets ranks wait)."""
        ...

    def receive(self, route: int, micro_batch: int) -> Any:
        """The value of that micro-batch.

        Raises:
            Cancelled: if another rank has failed.
        """
        ...

    def cancel(self) -> None:
        """The step has failed: whoever waits, or will, gets `Cancelled`."""
        ...


class Backend(Protocol):
    """Runs the ranks of a step, each in its own way, at the same time or not."""

    @property
    def turn(self) -> threading.RLock:
        """Held by the thread whose step is being run: stages are bound to one step at a time."""
        ...

    def transport(self, routes: Sequence[Route], *, brief: bool = False) -> Transport:
        """New, empty ways for one step.

        `brief`: its actions are so short that handing over between threads takes longer than they do.
        """
        ...

    def launch(
        self, mains: Sequence[RankMain], transport: Transport, surroundings: Surroundings
    ) -> None:
        """Run one main per rank to their ends.

        Raises:
            BaseException: the first failure of a rank, as it is, when all ranks have ended.
        """
        ...

    def close(self) -> None:
        """Give back threads and the like. A closed backend launches nothing."""
        ...
