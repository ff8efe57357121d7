"""What two workers can win on this machine at best: they share caches and memory, so it is below 2."""

from __future__ import annotations

import copy
import statistics
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn


def two_thread_speed(model: nn.Module, x: Tensor, repeats: int = 5) -> float:
    """Speed of a thread while a second one computes too, relative to a thread alone.

    Each thread trains a copy of `model` on `x` with one intra-op thread: independent work, no
    pipeline. 1.0 means that two threads do twice the work of one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        works = [_work(copy.deepcopy(model), x.clone()) for _ in range(2)]
        for work in works:
            work()
        return statistics.median(_alone(works) / _together(works) for _ in range(repeats))
    finally:
        torch.set_num_threads(before)


def _work(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        for _ in range(4):
            model.zero_grad()
            model(x).square().mean().backward()

    return run


def _alone(works: list[Callable[[], None]]) -> float:
    """Mean seconds of one work while nothing else runs."""
    begun = time.perf_counter()
    for work in works:
        work()
    return (time.perf_counter() - begun) / len(works)


def _together(works: list[Callable[[], None]]) -> float:
    """Mean seconds of a work while all run at once."""
    barrier = threading.Barrier(len(works))
    seconds: list[float] = []

    def main(work: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        barrier.wait()
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=main, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.mean(seconds)
