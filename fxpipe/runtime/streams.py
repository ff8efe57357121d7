"""`Streams`: what a lane asks of an accelerator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """What a lane needs of an accelerator. Given from outside, so that tests can give a virtual one."""

    def open(self, device: torch.device) -> torch.Stream:
        """A new stream on the device."""
        ...

    def current(self, device: torch.device) -> torch.Stream:
        """The stream that the calling thread issues its work for the device to."""
        ...

    def use(self, *streams: torch.Stream) -> AbstractContextManager[None]:
        """Make these the calling thread's current streams, one per device; the last device current."""
        ...

    def record(self, stream: torch.Stream) -> torch.Event:
        """An event that is reached when all work issued to the stream so far is done."""
        ...

    def wait(self, stream: torch.Stream, event: torch.Event) -> None:
        """Let work issued to the stream from now on start after the event."""
        ...

    def keep(self, tensor: Tensor, stream: torch.Stream) -> None:
        """Tell the allocator that the stream reads the tensor, though it was allocated on another."""
        ...

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A copy with the same strides, made by the current streams of both devices.

        To a CPU: done when this returns.
        """
        ...

    def device_of(self, tensor: Tensor) -> torch.device:
        """Where the tensor's memory is."""
        ...

    def has_streams(self, device: torch.device) -> bool:
        """Whether work on the device is issued to streams; False for a CPU."""
        ...

    def synchronize(self, stream: torch.Stream) -> None:
        """Hold the calling thread until the stream has nothing left to do."""
        ...

    def memory(self, device: torch.device) -> MemoryUse | None:
        """Bytes allocated on the device; None if it does not count them."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that torch has allocated on a device: now, and at most since the process began."""

    allocated: int
    peak: int


def marks(
    tensors: Iterable[Tensor],
    streams: Streams,
    known: Mapping[torch.device, torch.Event] | None = None,
) -> dict[torch.device, torch.Event]:
    """An event on the calling thread's current stream of every device that `tensors` are on."""
    events = dict(known or {})
    for device in {streams.device_of(tensor) for tensor in tensors}:
        if device not in events and streams.has_streams(device):
            events[device] = streams.record(streams.current(device))
    return events


def move(tensors: Iterable[Tensor], device: torch.device, streams: Streams) -> None:
    """Move tensors and their gradients to the device in place; they are there when this returns."""
    moved = False
    for tensor in tensors:
        for part in (tensor, tensor.grad):
            if part is not None and streams.device_of(part) != device:
                part.data = streams.copy(part.data, device)
                moved = True
    if moved and streams.has_streams(device):
        # The first step may be called from another stream than this one.
        streams.synchronize(streams.current(device))
