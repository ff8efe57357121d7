"""`FaultyAccelerator`: leaves out one of the calls that lanes make, as a mistake in them would."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.virtual.accelerator import VirtualAccelerator, VirtualEvent


@dataclass(frozen=True)
class Call:
    """A call of a lane: which, and from where in the lane's code (outermost function first)."""

    name: str
    site: str

    def __str__(self) -> str:
        return f"{self.name} in {self.site or 'the test'}"


class FaultyAccelerator(VirtualAccelerator):
    """Notes every record, wait, keep and copy in `calls`; leaves out those at `left_out`.

    Args:
        num_devices: number of devices.
        left_out: a position in the order of calls, a call (wherever it is made), or None.
    """

    def __init__(self, num_devices: int = 2, left_out: int | Call | None = None) -> None:
        super().__init__(num_devices)
        self.calls: list[Call] = []
        self._left_out = left_out

    @property
    def calls_of_lanes(self) -> list[Call]:
        """The different calls noted that lanes made, not the test itself."""
        return [call for call in dict.fromkeys(self.calls) if call.site]

    def record(self, stream: Any) -> Any:
        """An event; left out, it is never recorded."""
        return VirtualEvent() if self._is_left_out("record") else super().record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """Wait; left out, not."""
        if not self._is_left_out("wait"):
            super().wait(stream, event)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Tell the allocator; left out, not."""
        if not self._is_left_out("keep"):
            super().keep(tensor, stream)

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A copy; left out, the tensor itself."""
        return tensor if self._is_left_out("copy") else super().copy(tensor, device)

    def _is_left_out(self, name: str) -> bool:
        call = Call(name, _site())
        with self._lock:
            position = len(self.calls)
            self.calls.append(call)
        return self._left_out in (position, call)


def _site() -> str:
    """The functions of the lanes and their helpers that are being called, outermost first."""
    names = []
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("fxpipe.runtime."):
            module = frame.f_globals["__name__"].rpartition(".")[2]
            if module in ("stream_lane", "plain_lane", "streams"):
                if not frame.f_code.co_name.startswith("<"):
                    names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return " > ".join(reversed(names))
