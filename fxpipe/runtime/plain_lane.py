"""`PlainLane`: a rank on a device without streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        # For each device with streams that tensors come from: one that copies them.
        self._ways: dict[torch.device, torch.Stream] = {}
        self._caller: Mapping[torch.device, torch.Event] = {}

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
        return [self._here(tensor, event) for tensor in tensors]

    def from_caller(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors themselves, or copies if they are on another device."""
        devices = map(self._streams.device_of, tensors)
        return [
            self._here(tensor, self._caller.get(device))
            for tensor, device in zip(tensors, devices, strict=True)
        ]

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Move tensors to this device in place."""
        move(tensors, self.device, self._streams)

    def begin(self, inputs: Iterable[Tensor] = ()) -> None:
        """Copies of inputs on devices with streams will wait for the caller's."""
        self._caller = marks(inputs, self._streams)

    def finish(self, outputs: Iterable[Tensor] = ()) -> None:
        """Nothing is left to wait for."""

    def synchronize(self) -> None:
        """Hold the calling thread until a device that works on its own is done."""
        if not self.is_synchronous:
            torch.accelerator.synchronize(self.device)

    def memory(self) -> MemoryUse | None:
        """Bytes allocated on the device; None if it does not count them."""
        return self._streams.memory(self.device)

    def _here(self, tensor: Tensor, event: torch.Event | None) -> Tensor:
        """The tensor, or a copy that is done when this returns, made after the event."""
        streams = self._streams
        device = streams.device_of(tensor)
        if device == self.device:
            return tensor
        if not streams.has_streams(device):
            return streams.copy(tensor, self.device)
        if device not in self._ways:
            self._ways[device] = streams.open(device)
        if event is not None:
            streams.wait(self._ways[device], event)
        with streams.use(self._ways[device]):
            return streams.copy(tensor, self.device)
