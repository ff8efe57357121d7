"""`Lane`: where a rank's work is issued, and how values come to it from other ranks and the caller.

The life of a value that rank 0 makes on device a and rank 1 reads on device b:

    rank 0, compute stream   make y ── mark: event e
                                            │ wait
    rank 1, copy stream on a                └─ read y   (y is kept for this stream)
            copy stream on b                   write y' ── event
                                                             │ wait
            compute stream                                   └─ read y'   (y' is kept for this stream)

"Kept" is ``Tensor.record_stream``: memory goes back to the stream it was allocated on as soon as
Python drops the tensor, and only that call tells the allocator of readers on another stream. On one
device the copy falls away: rank 1's compute stream waits for e and reads y, kept for it.

Nothing here waits on the host, except where a CPU reads what an accelerator made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from fxpipe.runtime.streams import MemoryUse


class Lane(Protocol):
    """One rank's access to its device.

    A step goes: `begin` (in the caller's thread), then on the rank's thread any number of `receive`,
    `from_caller`, `compute` and `mark`, then `finish` (in the caller's thread).
    """

    @property
    def device(self) -> torch.device:
        """The device."""
        ...

    @property
    def is_synchronous(self) -> bool:
        """Whether work is done when the call that issues it returns."""
        ...

    def compute(self) -> AbstractContextManager[None]:
        """Issue the work inside to the rank's compute stream. May be nested."""
        ...

    def mark(self) -> torch.Event | None:
        """An event after the work issued to the compute stream so far; None if nobody must wait."""
        ...

    def receive(
        self, tensors: Sequence[Tensor], event: torch.Event | None, source: Lane
    ) -> list[Tensor]:
        """What rank `source` made before its mark `event`, to be read on this compute stream.

        Strides are kept; autograd does not follow the copy.
        """
        ...

    def from_caller(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors the caller made before `begin`, on any device, to be read on this compute stream."""
        ...

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Move parameters and buffers, with their gradients, to this device in place.

        For the caller's thread, between steps.
        """
        ...

    def begin(self, inputs: Iterable[Tensor] = ()) -> None:
        """Start after everything the calling thread has issued to this device and those of `inputs`.

        For the caller's thread, when the micro-batches have been cut and no work is issued yet.
        """
        ...

    def finish(self, outputs: Iterable[Tensor] = ()) -> None:
        """Let the calling thread's current stream go on after this lane's work, and read `outputs`.

        For the caller's thread, when the rank has issued all its work, also if it failed. `outputs`
        are the tensors handed out that this rank made; those on other devices are passed over.
        """
        ...

    def synchronize(self) -> None:
        """Hold the calling thread until all work issued here is done."""
        ...

    def memory(self) -> MemoryUse | None:
        """Bytes allocated on the device; None if it does not count them."""
        ...
