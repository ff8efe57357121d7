"""A clock for workers that slow one another down: how far each got, and when one will be done."""

from __future__ import annotations

import heapq
import math

from fxpipe.ir.cluster import Cluster


class SharedClock:
    """Work in progress on several ranks, all at the speed `Cluster.speed` gives for their number.

    All running ranks have one speed at any moment. So there is one count of work done since the
    start by anyone who ran all along, and a job started at count c with w seconds of work is done
    at c + w, whatever the speeds on the way: jobs wait in one heap, ordered by that count.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._jobs: list[tuple[float, int]] = []
        self._time = 0.0
        self._count = 0.0
        self._speed = cluster.speed(1)

    def start(self, rank: int, work: float, now: float) -> None:
        """Begin `work` seconds (at full speed) on an idle rank at time `now`."""
        heapq.heappush(self._jobs, (self._count_at(now) + work, rank))
        self._turn(now)

    def next_end(self) -> float:
        """When the next job is done, if none is started before; infinite if nothing runs."""
        return self._time_of(self._jobs[0][0]) if self._jobs else math.inf

    def finish(self) -> tuple[float, int]:
        """Take the next job that is done: (time, rank)."""
        now = self.next_end()
        _, rank = heapq.heappop(self._jobs)
        self._turn(now)
        return now, rank

    def _turn(self, now: float) -> None:
        """Change the speed to that of the ranks that now run; both counts go on from here."""
        speed = self._cluster.speed(max(1, len(self._jobs)))
        if speed != self._speed:
            self._time, self._count, self._speed = now, self._count_at(now), speed

    def _count_at(self, now: float) -> float:
        return self._count + (now - self._time) * self._speed

    def _time_of(self, count: float) -> float:
        return self._time + (count - self._count) / self._speed
