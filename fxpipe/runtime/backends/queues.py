"""Ways between ranks that run at the same time: a queue each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from fxpipe.runtime.backend import Cancelled, Route


class LocalTransport:
    """A queue per route. The queues belong to one step: a step that fails leaves nothing behind."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.failed = False
        self._queues: list[SimpleQueue[tuple[int | None, Any]]] = [SimpleQueue() for _ in routes]
        self._early: list[dict[int, Any]] = [{} for _ in routes]
        self._handles: list[RemovableHandle] = []
        self._runs = False

    def send(self, route: int, micro_batch: int, value: Any) -> None:
        """Put a value on its way."""
        self._queues[route].put((micro_batch, value))

    def can_receive(self, route: int, micro_batch: int) -> bool:
        """True: `receive` waits."""
        return True

    def receive(self, route: int, micro_batch: int) -> Any:
        """The value of that micro-batch, as soon as it is there.

        Raises:
            Cancelled: if another rank has failed.
        """
        early = self._early[route]
        if early and micro_batch in early:
            return early.pop(micro_batch)
        queue = self._queues[route]
        arrived, value = queue.get()
        while arrived != micro_batch:
            if arrived is None:
                queue.put((None, None))  # for whoever asks next
                raise Cancelled
            early[arrived] = value
            arrived, value = queue.get()
        return value

    def begin(self) -> None:
        """Ranks run from here to `end`."""
        self._runs = True

    def cancel(self) -> None:
        """Wake everyone who waits for a value; forwards end at their next call of a module."""
        self.failed = True
        if self._runs:
            self._handles.append(register_module_forward_pre_hook(_end_early))
        for queue in self._queues:
            queue.put((None, None))

    def end(self) -> None:
        """All ranks have ended."""
        self._runs = False
        while self._handles:
            self._handles.pop().remove()


class _Running(threading.local):
    """What the thread runs for."""

    transport: LocalTransport | None = None


_RUNNING: Final = _Running()


def end_early_with(transport: LocalTransport | None) -> None:
    """The calling thread runs for a step, or for none, from now on: its forwards fail with the step."""
    _RUNNING.transport = transport


def _end_early(module: nn.Module, args: Any) -> None:
    """A hook before every call of a module, from a failure of a step to its end.

    Raises:
        Cancelled: on the workers of a step that has failed.
    """
    transport = _RUNNING.transport
    if transport is not None and transport.failed:
        raise Cancelled
