"""All ranks in the calling thread, one action after another in order of their needs: the oracle."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import Any

from fxpipe.errors import DeadlockError
from fxpipe.ir.action import Action
from fxpipe.runtime.backend import Cancelled, RankMain, Route, Surroundings, Transport


class InlineTransport:
    """Values in dictionaries, one per route."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.failed = False
        self._held: list[dict[int, Any]] = [{} for _ in routes]

    def send(self, route: int, micro_batch: int, value: Any) -> None:
        """Put a value on its way."""
        self._held[route][micro_batch] = value

    def can_receive(self, route: int, micro_batch: int) -> bool:
        """Whether the value is there."""
        return micro_batch in self._held[route]

    def receive(self, route: int, micro_batch: int) -> Any:
        """The value of that micro-batch."""
        if self.failed:
            raise Cancelled
        return self._held[route].pop(micro_batch)

    def cancel(self) -> None:
        """Drop everything."""
        self.failed = True
        for held in self._held:
            held.clear()


class InlineBackend:
    """Runs each rank as far as it gets, in turn, until all have ended."""

    def __init__(self) -> None:
        self.turn = threading.RLock()

    def transport(self, routes: Sequence[Route], *, brief: bool = False) -> InlineTransport:
        """New, empty ways for one step."""
        return InlineTransport(routes)

    def launch(
        self, mains: Sequence[RankMain], transport: Transport, surroundings: Surroundings
    ) -> None:
        """Run one main per rank to their ends.

        Raises:
            DeadlockError: if no rank can go on.
            BaseException: what a rank's work raised.
        """
        run_in_turn(mains, transport, surroundings)

    def close(self) -> None:
        """Nothing to give back."""


def run_in_turn(
    mains: Sequence[RankMain], transport: Transport, surroundings: Surroundings
) -> None:
    """Run the ranks to their ends in the calling thread.

    Raises:
        DeadlockError: if no rank can go on.
        BaseException: what a rank's work raised.
    """
    running = {rank: main() for rank, main in enumerate(mains)}
    try:
        with surroundings():
            _advance(running)
    except BaseException:
        transport.cancel()
        raise
    finally:
        for actions in running.values():
            actions.close()


def _advance(running: dict[int, Generator[Action, None, None]]) -> None:
    """Run all ranks until each has ended, and taken itself out of `running`."""
    waits: dict[int, str] = {}
    while running:
        before = dict(waits)
        for rank, actions in list(running.items()):
            action = next(actions, None)
            if action is None:
                del running[rank]
                waits.pop(rank, None)
            else:
                waits[rank] = str(action)
        if running and waits == before:
            listed = "; ".join(f"rank {rank} waits for {what}" for rank, what in waits.items())
            raise DeadlockError(f"no rank can go on: {listed}")
