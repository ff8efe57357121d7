"""`Cluster`: the ranks a pipeline runs on and the links between them, as the simulator sees them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from fxpipe.ir.numbers import is_whole


@dataclass(frozen=True)
class Cluster:
    """Ranks, their memory and their links.

    Attributes:
        ranks: number of workers.
        latency: seconds per transfer between two ranks.
        bandwidth: bytes per second of a link; infinite if 0.
        memory: bytes per rank for what is kept from forward to backward; None if not limited. A search
            keeps to it where it is given no other limit.
        speeds: ``speeds[k - 1]`` is the speed of each rank while k ranks compute at once, relative to
            one rank alone (CPU workers share caches and memory); the last value holds for larger k.
    """

    ranks: int
    latency: float = 0.0
    bandwidth: float = 0.0
    memory: int | None = None
    speeds: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not is_whole(self.ranks) or self.ranks < 1:
            raise ValueError(f"a cluster needs at least one rank, got {self.ranks!r}")
        if self.memory is not None and not self.memory >= 0:
            raise ValueError(f"the memory of a rank cannot be negative, got {self.memory}")
        if not (0 <= self.latency < math.inf and self.bandwidth >= 0):
            raise ValueError(
                "latency and bandwidth cannot be negative, and a transfer has to end, got "
                f"{self.latency:g} and {self.bandwidth:g}"
            )
        if not self.speeds or not all(0 < speed < math.inf for speed in self.speeds):
            raise ValueError(f"speeds must be positive numbers, got {self.speeds}")

    @classmethod
    def local(cls, devices: Sequence[str]) -> Cluster:
        """Ranks on this machine: CPU workers beyond the cores share them; links are free.

        Args:
            devices: one name per rank.
        """
        if set(devices) != {"cpu"}:
            return cls(len(devices))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        speeds = tuple(min(1.0, (cores or 1) / busy) for busy in range(1, len(devices) + 1))
        return cls(len(devices), speeds=speeds)

    def speed(self, busy: int) -> float:
        """Speed of each rank while `busy` ranks compute."""
        return self.speeds[min(busy, len(self.speeds)) - 1]

    def transfer_time(self, nbytes: int) -> float:
        """Seconds for `nbytes` over one link."""
        return self.latency + (nbytes / self.bandwidth if self.bandwidth else 0.0)
