"""`PlainLane`: a rank on a device without streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fxpipe.runtime.lane import Lane
from fxpipe.runtime.streams import MemoryUse, Streams, marks, move

_AT_ONCE: AbstractContextManager[None] = nullcontext()


class PlainLane:
    """A lane without streams: a CPU, or an accelerator that does everything in one order."""

    def __init__(
        self, device: torch.device, streams: Streams, *, is_synchronous: bool = True
    ) -> None:
        self.device = device
        self.is_synchronous = is_synchronous
        self._streams = streams

    def compute(self) -> AbstractContextManager[None]:
        """A context that does nothing."""
        return _AT_ONCE

    def mark(self) -> torch.Event | None:
        """None: whatever was issued before is done before."""
        return None

    def receive(
        self, tensors: Sequence[Tensor], event: torch.Event | None, source: Lane
    ) -> list[Tensor]:
        """The tensors themselves, or copies if they are on another device."""
        if source.device == self.device:
            return list(tensors)
        if event is not None:
            event.synchronize()
        return self.from_caller(tensors)

    def from_caller(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors themselves, or copies if they are on another device."""
        return [self._here(tensor) for tensor in tensors]

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Move tensors to this device in place."""
        move(tensors, self.device, self._streams)

    def begin(self, inputs: Iterable[Tensor] = ()) -> None:
        """Hold the calling thread until inputs on devices with streams are made."""
        for event in marks(inputs, self._streams).values():
            event.synchronize()

    def finish(self, outputs: Iterable[Tensor] = ()) -> None:
        """Nothing is left to wait for."""

    def synchronize(self) -> None:
        """Hold the calling thread until a device that works on its own is done."""
        if not self.is_synchronous:
            torch.accelerator.synchronize(self.device)

    def memory(self) -> MemoryUse | None:
        """Bytes allocated on the device; None if it does not count them."""
        return self._streams.memory(self.device)

    def _here(self, tensor: Tensor) -> Tensor:
        if self._streams.device_of(tensor) == self.device:
            return tensor
        return self._streams.copy(tensor, self.device)
