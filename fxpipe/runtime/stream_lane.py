"""`StreamLane`: a rank with a compute stream and copy streams of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from fxpipe.runtime.lane import Lane
from fxpipe.runtime.streams import MemoryUse, Streams, marks, move


class StreamLane:
    """A lane with a compute stream of its own and, for each source, copy streams of its own."""

    is_synchronous = False

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self.device = device
        self._streams = streams
        self._compute = streams.open(device)
        # For each source (a rank, or a device of the caller): a stream on each end of the way.
        self._ways: dict[object, tuple[torch.Stream, ...]] = {}
        self._caller: Mapping[torch.device, torch.Event] = {}
        self._accumulators: dict[Tensor, Node] = {}

    def compute(self) -> AbstractContextManager[None]:
        """The rank's compute stream is current inside."""
        return self._streams.use(self._compute)

    def mark(self) -> torch.Event | None:
        """An event recorded on the compute stream."""
        return self._streams.record(self._compute)

    def receive(
        self, tensors: Sequence[Tensor], event: torch.Event | None, source: Lane
    ) -> list[Tensor]:
        """The tensors, once `event` is reached: themselves on one device, else copies."""
        if source is self:
            return list(tensors)
        # A stage may make a tensor on the host (a scalar, say): it is handed on as it is.
        made = [self._streams.device_of(tensor) == source.device for tensor in tensors]
        moving = [tensor for tensor, on_device in zip(tensors, made, strict=True) if on_device]
        arrived = iter(self._take(moving, event, source) if moving else ())
        return [
            next(arrived) if on_device else tensor
            for tensor, on_device in zip(tensors, made, strict=True)
        ]

    def from_caller(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The caller's tensors: shared if they are here, else copied on a copy stream."""
        arrived = []
        for tensor in tensors:
            device = self._streams.device_of(tensor)
            if device == self.device:
                arrived += self._share([tensor])
            else:
                arrived += self._fetch([tensor], self._caller.get(device), device, device)
        return arrived

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Move tensors to this device in place, on the caller's current stream."""
        adopted = list(tensors)
        move(adopted, self.device, self._streams)
        # Autograd adds to .grad on the stream that was current when a parameter was first used:
        # let it be this one. The node lives as long as someone holds it.
        with self.compute():
            for tensor in adopted:
                if tensor.requires_grad and tensor not in self._accumulators:
                    self._accumulators[tensor] = get_gradient_edge(tensor).node

    def begin(self, inputs: Iterable[Tensor] = ()) -> None:
        """Let the compute stream wait for the caller; copies of `inputs` will wait for theirs."""
        here = self._streams.record(self._streams.current(self.device))
        self._streams.wait(self._compute, here)
        self._caller = marks(inputs, self._streams, known={self.device: here})

    def finish(self, outputs: Iterable[Tensor] = ()) -> None:
        """Let the caller's current stream wait for the compute stream, and keep `outputs` for it."""
        current = self._streams.current(self.device)
        self._streams.wait(current, self._streams.record(self._compute))
        for tensor in outputs:
            if self._streams.device_of(tensor) == self.device:
                self._streams.keep(tensor, current)

    def synchronize(self) -> None:
        """Hold the calling thread until the compute stream, and all it waits for, is done."""
        self._streams.synchronize(self._compute)

    def memory(self) -> MemoryUse | None:
        """Bytes allocated on the device; None if it does not count them."""
        return self._streams.memory(self.device)

    def _take(
        self, tensors: Sequence[Tensor], event: torch.Event | None, source: Lane
    ) -> list[Tensor]:
        if source.device != self.device:
            return self._fetch(tensors, event, source, source.device)
        if event is not None:
            self._streams.wait(self._compute, event)
        return self._share(tensors)

    def _share(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for tensor in tensors:
            self._streams.keep(tensor, self._compute)
        return list(tensors)

    def _fetch(
        self,
        tensors: Sequence[Tensor],
        event: torch.Event | None,
        source: object,
        device: torch.device,
    ) -> list[Tensor]:
        """Copies made on the copy streams of the way from `source`: its first end reads."""
        streams = self._streams
        way = self._way(source, device)
        reads, writes = way[0], way[-1]
        if event is not None:
            streams.wait(reads, event)
        with streams.use(*way):
            copies = [streams.copy(tensor, self.device) for tensor in tensors]
        if reads is not writes:
            for tensor in tensors:
                streams.keep(tensor, reads)
        streams.wait(self._compute, streams.record(writes))
        return self._share(copies)

    def _way(self, source: object, device: torch.device) -> tuple[torch.Stream, ...]:
        if source not in self._ways:
            ends = [end for end in (device, self.device) if self._streams.has_streams(end)]
            self._ways[source] = tuple(self._streams.open(end) for end in ends)
        return self._ways[source]
