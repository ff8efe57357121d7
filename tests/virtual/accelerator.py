"""`VirtualAccelerator`: several devices with streams, on CPU tensors."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fxpipe.runtime.devices import copy_with_strides
from fxpipe.runtime.streams import MemoryUse
from tests.virtual.clocks import Actor, Clock, Moment
from tests.virtual.hazards import Kind, Report
from tests.virtual.memory import HOST, Memory
from tests.virtual.names import device_names
from tests.virtual.operations import Operation, operation
from tests.virtual.threads import host, watched

_LONGEST_PAUSE = 0.004  # seconds


class VirtualStream(Actor):
    """A stream of a device."""

    def __init__(self, device: torch.device, name: str) -> None:
        super().__init__(name)
        self.device = device
        self.issued: Moment | None = None
        """The last deed of a host thread on this stream."""


class VirtualEvent:
    """A point in a stream; until it is recorded, none."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.recorded: Moment | None = None


class VirtualAccelerator:
    """Devices ``cpu:0``, ``cpu:1``, … that exist side by side, besides the host ``cpu``.

    Inside `watch`, every operation of every thread is checked. An operation runs on the device its
    operands are on, there on the stream that is the thread's current one.

    Args:
        num_devices: number of devices.
        delays: seed of random pauses of host threads, which bring their work into other orders.
    """

    def __init__(self, num_devices: int = 2, *, delays: int | None = None) -> None:
        self.report = Report()
        self.memory_blocks = Memory(self.report)
        self.devices = tuple(torch.device("cpu", index) for index in range(num_devices))
        self._delays = None if delays is None else random.Random(delays)
        self._lock = threading.RLock()
        self._here = threading.local()
        self._streams: list[VirtualStream] = []
        self._defaults = {device: self._stream(device, "default") for device in self.devices}

    # ---- what lanes ask for ----------------------------------------------------------------------

    def open(self, device: torch.device) -> Any:
        """A new stream on the device."""
        return self._stream(device, f"stream{len(self._streams)}")

    def current(self, device: torch.device) -> Any:
        """The calling thread's current stream on the device."""
        return self._current().get(device, self._defaults[device])

    @contextmanager
    def use(self, *streams: Any) -> Iterator[None]:
        """Make these the calling thread's current streams."""
        before = dict(self._current())
        self._current().update({stream.device: stream for stream in streams})
        try:
            yield
        finally:
            self._here.current = before

    def record(self, stream: Any) -> Any:
        """An event after the work issued to the stream so far."""
        self._pause()
        event = VirtualEvent()
        with self._lock:
            event.recorded = self._issue(stream, "record")
            event.clock = stream.snapshot()
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Let later work on the stream start after the event."""
        self._pause()
        with self._lock:
            self._issue(stream, "wait")
            if self._check_event(event, stream.name):
                stream.learn(event.clock)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Tell the allocator that the stream reads the tensor."""
        with self._lock:
            device = self.device_of(tensor)
            if device == HOST:
                self.report.add(Kind.MIXED_DEVICES, f"record_stream on {stream.name}", device)
            self.memory_blocks.keep(tensor, stream)

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A copy made by the current streams of both devices."""
        with self.unseen(), torch.no_grad():
            result = copy_with_strides(tensor.detach(), HOST, non_blocking=False)
        with self._lock:
            self._transfer("copy", tensor, result, device, is_new=True)
        return result

    def device_of(self, tensor: Tensor) -> torch.device:
        """Where the tensor's memory is."""
        with self._lock:
            return self.memory_blocks.block(tensor).device

    def has_streams(self, device: torch.device) -> bool:
        """Whether the device is one of the virtual ones."""
        return device in self.devices

    def synchronize(self, stream: Any) -> None:
        """The calling thread goes on when the stream has nothing left to do."""
        self.host_wait(self.record(stream))

    def memory(self, device: torch.device) -> MemoryUse | None:
        """None: it does not count."""
        return None

    def event(self) -> VirtualEvent:
        """An event that is not recorded yet."""
        return VirtualEvent()

    # ---- what tests ask for ----------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator[VirtualAccelerator]:
        """Check everything that happens inside, in this thread and in those started inside."""
        with device_names(self), watched(lambda: _Watch(self)), _Watch(self):
            yield self

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Inside, the calling thread's operations are not checked."""
        before = getattr(self._here, "unseen", False)
        self._here.unseen = True
        try:
            yield
        finally:
            self._here.unseen = before

    def place(self, tensors: nn.Module | Iterable[Tensor], device: torch.device) -> None:
        """The tensors (of a module: parameters and buffers) are on the device from now on."""
        if isinstance(tensors, nn.Module):
            tensors = [*tensors.parameters(), *tensors.buffers()]
        stream = self.current(device)
        with self._lock:
            for tensor in tensors:
                self.memory_blocks.allocate(tensor, device, stream)
                self.memory_blocks.write(tensor, self._deed(stream, "place"))

    def read(self, tensor: Tensor) -> Tensor:
        """The numbers, as host code would see them that takes no further care."""
        with self._lock:
            self.memory_blocks.read(tensor, host().act("host read"), done=True)
        with self.unseen():
            return tensor.detach().clone()

    def host_wait(self, event: VirtualEvent) -> None:
        """The calling thread goes on when the event is reached."""
        with self._lock:
            if self._check_event(event, host().name):
                assert event.clock is not None
                host().learn(event.clock)

    def synchronize_all(self) -> None:
        """The calling thread goes on when all streams have nothing left to do."""
        for stream in self._streams:
            self.synchronize(stream)

    # ---- operations ------------------------------------------------------------------------------

    def perform(self, done: Operation) -> None:
        """Check an operation that the calling thread has issued."""
        with self._lock:
            if done.is_transfer and self._is_between_devices(done):
                source, target = done.reads[-1], done.outputs[0]
                device = done.device or self.memory_blocks.block(target).device
                self._transfer(done.name, source, target, device, is_new=not done.writes)
            else:
                self._compute(done)

    def _compute(self, done: Operation) -> None:
        device = self._place_of(done)
        made = [tensor for tensor in done.outputs if not self.memory_blocks.is_known(tensor)]
        if not (done.reads or done.writes or made):
            return  # a view: nothing is issued
        actor = host() if device == HOST else self.current(device)
        moment = self._deed(actor, done.name)
        for tensor in done.reads:
            self.memory_blocks.read(tensor, moment)
        for tensor in done.writes:
            self.memory_blocks.write(tensor, moment)
        for tensor in made:
            self.memory_blocks.allocate(tensor, device, None if device == HOST else actor)
            self.memory_blocks.write(tensor, moment)
        if done.is_blocking:
            host().learn(actor.snapshot())

    def _place_of(self, done: Operation) -> torch.device:
        """The device an operation runs on; one that mixes devices is reported."""
        if done.device is not None and done.device.index is not None and not done.touched:
            return done.device
        where: dict[torch.device, None] = {}
        for tensor in done.touched:
            device = self.memory_blocks.block(tensor).device
            if device != HOST or tensor.dim() > 0:  # a number may come from the host
                where[device] = None
        if len(where) > 1:
            self.report.add(Kind.MIXED_DEVICES, done.name, ", ".join(sorted(map(str, where))))
        return next((device for device in where if device != HOST), HOST)

    def _is_between_devices(self, done: Operation) -> bool:
        devices = {self.memory_blocks.block(tensor).device for tensor in done.touched}
        if done.device is not None and done.device.index is not None:
            devices.add(done.device)
        return len(devices) > 1

    def _transfer(
        self, name: str, source: Tensor, target: Tensor, device: torch.device, *, is_new: bool
    ) -> None:
        """A copy as torch makes it: on the source's stream, the target's ordered before and after."""
        origin = self.memory_blocks.block(source).device
        reader = host() if origin == HOST else self.current(origin)
        writer = host() if device == HOST else self.current(device)
        if reader is not writer and device != HOST:
            self._deed(writer, "ready")
            reader.learn(writer.snapshot())
        moment = self._deed(reader, name)
        self.memory_blocks.read(source, moment, done=device == HOST)
        writer.learn(reader.snapshot())
        if is_new:
            self.memory_blocks.allocate(target, device, None if device == HOST else writer)
        self.memory_blocks.write(target, self._deed(writer, name))

    # ---- clocks ----------------------------------------------------------------------------------

    def _deed(self, actor: Actor, label: str) -> Moment:
        """A deed of a stream, issued by the calling thread; or of the calling thread itself."""
        if isinstance(actor, VirtualStream):
            self._issue(actor, label)
        return actor.act(label)

    def _issue(self, stream: VirtualStream, label: str) -> Moment:
        """The calling thread puts something on a stream: what the thread knows comes before it."""
        thread = host()
        if stream.issued is not None and not thread.knows(stream.issued):
            self.report.add(Kind.RACING_THREADS, f"{label} on {stream.name}", stream.issued)
        stream.issued = thread.act(f"{label} on {stream.name}")
        stream.learn(thread.clock)
        return stream.issued

    def _check_event(self, event: VirtualEvent, who: str) -> bool:
        if event.recorded is None:
            self.report.add(Kind.UNRECORDED, f"wait by {who}")
            return False
        if not host().knows(event.recorded):
            self.report.add(Kind.RACING_THREADS, f"wait by {who}", event.recorded)
        return True

    def _pause(self) -> None:
        if self._delays is not None:
            time.sleep(self._delays.random() * _LONGEST_PAUSE)

    def _stream(self, device: torch.device, name: str) -> VirtualStream:
        stream = VirtualStream(device, f"{name} of {device}")
        with self._lock:
            self._streams.append(stream)
        return stream

    def _current(self) -> dict[torch.device, VirtualStream]:
        if not hasattr(self._here, "current"):
            self._here.current = {}
        current: dict[torch.device, VirtualStream] = self._here.current
        return current

    @property
    def is_looking(self) -> bool:
        """Whether the calling thread's operations are checked now."""
        return not getattr(self._here, "unseen", False)


class _Watch(TorchDispatchMode):
    """Tells the accelerator of every operation of a thread, those of backward included."""

    def __init__(self, accelerator: VirtualAccelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._accelerator.is_looking:
            self._accelerator.perform(operation(func, args, kwargs, result))
        return result
