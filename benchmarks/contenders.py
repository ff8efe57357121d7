"""One training step of a workload by each library: forward, loss, backward, gradients in ``.grad``.

Every contender has its own copy of the model and sets the intra-op threads it is measured with.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from benchmarks.workloads import Workload

Step: TypeAlias = Callable[[], object]
Recompute: TypeAlias = Literal["never", "except_last", "always"]

CORES = os.cpu_count() or 1
MODES: tuple[Recompute, ...] = ("never", "except_last", "always")


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Torch's intra-op threads set to `count` inside, put back after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def eager(model: nn.Module, x: Tensor, target: Tensor, threads: int) -> Step:
    """The plain model on the whole batch."""
    model = copy.deepcopy(model)

    def step() -> Tensor:
        with intra_op_threads(threads):
            model.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()
        return loss.detach()

    return step


def pipeline(model: nn.Module, x: Tensor, chunks: int) -> fxpipe.Pipeline:
    """Two CPU workers of one intra-op thread each, for a copy of `model`.

    Its ``replace`` gives the same stages another schedule, recompute mode or backend.
    """
    return fxpipe.compile(
        copy.deepcopy(model),
        devices=["cpu", "cpu"],
        chunks=chunks,
        example_args=(x,),
        threads_per_rank=1,
    )


def fxpipe_step(
    pipe: fxpipe.Pipeline,
    x: Tensor,
    target: Tensor,
    timelines: list[fxpipe.Timeline] | None = None,
) -> Step:
    """A step of a pipeline; its timeline is appended to `timelines`."""

    def step() -> None:
        with intra_op_threads(1):
            pipe.zero_grad()
            result = pipe.step(x, target=target, loss_fn=F.mse_loss, keep_output=False)
        if timelines is not None:
            timelines.append(result.timeline)

    return step


def torchgpipe_step(
    workload: Workload,
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    *,
    chunks: int,
    recompute: Recompute,
    threads: int,
) -> Step:
    """A step of torchgpipe 0.0.7, balanced by its own profiler."""
    from torchgpipe import GPipe
    from torchgpipe.balance import balance_by_time

    layers = workload.as_sequential(copy.deepcopy(model))
    with intra_op_threads(1):
        balance = balance_by_time(2, layers, x[: max(1, len(x) // chunks)], device="cpu")
    pipe = GPipe(
        layers,
        balance,
        devices=["cpu", "cpu"],
        chunks=chunks,
        checkpoint=recompute,
        deferred_batch_norm=True,
    )

    def step() -> Tensor:
        with intra_op_threads(threads):
            pipe.zero_grad()
            loss = F.mse_loss(pipe(x), target)
            loss.backward()
        return loss.detach()

    return step
