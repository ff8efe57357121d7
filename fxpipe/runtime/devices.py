"""What devices there are and what they can do. No other file asks what kind of device it is on.

Written with `torch.Stream`, `torch.Event`, `torch.accelerator` and ``Tensor.record_stream`` only, so
that one code serves every accelerator torch knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from fxpipe.runtime.lane import Lane
from fxpipe.runtime.plain_lane import PlainLane
from fxpipe.runtime.stream_lane import StreamLane
from fxpipe.runtime.streams import MemoryUse, Streams

DEFAULT_CPU_WORKERS: Final = 2
"""Ranks where there is no accelerator and the caller names no devices."""


def resolve_devices(
    devices: Sequence[str | torch.device] | None = None,
) -> tuple[torch.device, ...]:
    """One device per rank, as torch names it: ``"cuda"`` becomes the current CUDA device.

    Args:
        devices: names or devices; the same one may stand for several ranks. None: every visible
            accelerator, else two CPU workers.

    Raises:
        ValueError: for a name that is no device, a device that is not there, or an empty list.
    """
    if devices is None:
        return _every_accelerator() or (torch.device("cpu"),) * DEFAULT_CPU_WORKERS
    if isinstance(devices, str | torch.device):
        raise ValueError(
            f"devices must be a list with one entry per rank, got {str(devices)!r}: "
            f"write devices=[{str(devices)!r}]"
        )
    if not devices:
        raise ValueError("devices is empty: name one device per rank, or leave it out")
    return tuple(_resolve(device) for device in devices)


def open_lane(device: torch.device, streams: Streams | None = None) -> Lane:
    """A lane on the device: with streams of its own where the device has any.

    Args:
        device: from `resolve_devices`.
        streams: what makes streams, events and copies; None: torch.
    """
    chosen = TorchStreams() if streams is None else streams
    if chosen.has_streams(device):
        return StreamLane(device, chosen)
    return PlainLane(device, chosen, is_synchronous=device.type == "cpu")


class TorchStreams:
    """Streams of the accelerator that torch was built for."""

    def open(self, device: torch.device) -> torch.Stream:
        """A new stream on the device."""
        return torch.Stream(device)

    def current(self, device: torch.device) -> torch.Stream:
        """The calling thread's current stream on the device."""
        return torch.accelerator.current_stream(device)

    @contextmanager
    def use(self, *streams: torch.Stream) -> Iterator[None]:
        """Make these the calling thread's current streams; restore them and the device after."""
        # A torch.Stream is a context manager too, but one stream can be entered only once.
        device = torch.accelerator.current_device_index()
        before = [torch.accelerator.current_stream(stream.device) for stream in streams]
        try:
            for stream in streams:
                torch.accelerator.set_stream(stream)
            yield
        finally:
            for stream in reversed(before):
                torch.accelerator.set_stream(stream)
            torch.accelerator.set_device_index(device)

    def record(self, stream: torch.Stream) -> torch.Event:
        """An event after the work issued to the stream so far."""
        return stream.record_event()

    def wait(self, stream: torch.Stream, event: torch.Event) -> None:
        """Let later work on the stream start after the event."""
        stream.wait_event(event)

    def keep(self, tensor: Tensor, stream: torch.Stream) -> None:
        """Tell the allocator that the stream reads the tensor."""
        tensor.record_stream(stream)

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A copy with the same strides; to a CPU it is done when this returns."""
        with torch.no_grad():
            return copy_with_strides(tensor, device, non_blocking=device.type != "cpu")

    def device_of(self, tensor: Tensor) -> torch.device:
        """The tensor's device."""
        return tensor.device

    def has_streams(self, device: torch.device) -> bool:
        """Whether the device is an accelerator on which streams can be opened."""
        return device.type != "cpu" and _can_open_streams(device.type)

    def synchronize(self, stream: torch.Stream) -> None:
        """Hold the calling thread until the stream has nothing left to do."""
        stream.synchronize()

    def memory(self, device: torch.device) -> MemoryUse | None:
        """Bytes the caching allocator holds for tensors; None for a CPU."""
        if not self.has_streams(device):
            return None
        return MemoryUse(
            torch.accelerator.memory_allocated(device),
            torch.accelerator.max_memory_allocated(device),
        )


def copy_with_strides(tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
    """A copy of a tensor on a device, gaps and repeated elements laid out alike.

    A kernel's order of sums follows the strides of its operands: a gradient that arrives packed
    gives a convolution's bias gradient other last bits than the same one with gaps.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.to(device, non_blocking=non_blocking, copy=True)
    # Elements that stride 0 repeats are sent once: memory that overlaps cannot be written to.
    once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]
    copy = torch.empty_strided(once.size(), once.stride(), dtype=tensor.dtype, device=device)
    copy.copy_(once, non_blocking=non_blocking)
    return copy.as_strided(tensor.size(), tensor.stride())


def _every_accelerator() -> tuple[torch.device, ...]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ()
    return tuple(
        torch.device(accelerator.type, index) for index in range(torch.accelerator.device_count())
    )


def _resolve(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name!r} is no device; {_what_is_there()}") from error
    if device.type == "cpu":
        return torch.device("cpu")
    there = _every_accelerator()
    if str(device) == device.type and there and device.type == there[0].type:
        return there[torch.accelerator.current_device_index()]
    if device not in there:
        raise ValueError(f"device {str(name)!r} is not there; {_what_is_there()}")
    return device


def _what_is_there() -> str:
    return "there is " + ", ".join(map(str, (torch.device("cpu"), *_every_accelerator())))


def _can_open_streams(kind: str) -> bool:
    """Whether torch knows streams for this kind of device (MPS has one queue and none)."""
    module = torch.get_device_module(kind)
    return hasattr(module, "Stream") and hasattr(module, "set_stream")
