"""Where a caller has his data and from which streams he calls, as it matters to a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tests.virtual.accelerator import VirtualAccelerator


@dataclass(frozen=True)
class Caller:
    """A way to call a pipeline.

    Attributes:
        inputs: the device of inputs and targets, which a data loader makes on a stream of its own;
            None: the host.
        has_side_streams: each step is called from new streams, which wait for the last optimiser
            step only; its results are looked at beside the next step.
    """

    inputs: int | None = None
    has_side_streams: bool = False


CALLERS = {
    "inputs on the host": Caller(),
    "inputs on the first device": Caller(0),
    "inputs on the second device": Caller(1),
    "side streams": Caller(has_side_streams=True),
}


class Streams:
    """The streams of a caller; it orders them as it must, and no more."""

    def __init__(self, accelerator: VirtualAccelerator, caller: Caller) -> None:
        self._accelerator = accelerator
        self._caller = caller
        self._loader = [accelerator.open(device) for device in accelerator.devices]
        self._calling: list[Any] = []
        self._updated: list[Any] = []

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Inside, a step is called."""
        accelerator = self._accelerator
        find = accelerator.open if self._caller.has_side_streams else accelerator.current
        self._calling = [find(device) for device in accelerator.devices]
        self._order(self._updated, self._calling)
        with accelerator.use(*self._calling):
            yield

    def updated(self) -> None:
        """The optimiser's step has been issued: the next step may be called."""
        self._updated = self._record(self._calling)

    def load(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors where the caller has them."""
        if self._caller.inputs is None:
            return list(tensors)
        device = self._accelerator.devices[self._caller.inputs]
        with self._accelerator.use(*self._loader):
            loaded = [x.detach().to(device).requires_grad_(x.requires_grad) for x in tensors]
        self._order(self._record(self._loader), self._calling)
        return loaded

    # The caller's own calls are no lane's, so they are never left out.

    def _record(self, streams: Sequence[Any]) -> list[Any]:
        return [VirtualAccelerator.record(self._accelerator, stream) for stream in streams]

    def _order(self, events: Sequence[Any], streams: Sequence[Any]) -> None:
        for event, stream in zip(events, streams, strict=False):
            VirtualAccelerator.wait(self._accelerator, stream, event)
