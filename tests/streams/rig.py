"""A model as a pipeline on lanes of the test's own, and a caller who trains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.analysis.estimate import estimate
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.codegen.load import load
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import Placement
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.partitioners.partition import partition
from fxpipe.portals.edges import link
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.micro_batch import scatter
from fxpipe.runtime.outcome import Outcome
from fxpipe.runtime.runtime import Runtime
from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from tests.conformance.harness import loss_task


@dataclass(frozen=True)
class Setting:
    """How a model is run.

    Attributes:
        places: the device of each rank, by number; None: the host.
        schedule: by name.
        recompute: by name.
        chunks: micro-batches.
        stages_per_rank: stage s runs on rank ``s % ranks``.
    """

    places: tuple[int | None, ...] = (0, 1)
    schedule: str = "1f1b"
    recompute: str = "never"
    chunks: int = 3
    stages_per_rank: int = 1

    @property
    def stages(self) -> int:
        return len(self.places) * self.stages_per_rank


@dataclass(frozen=True)
class Cut:
    """What the compiler makes of a model; it serves every model of the class."""

    capture: Capture
    graph: StageGraph
    programs: tuple[StageProgram, ...]

    @classmethod
    def of(cls, model: nn.Module, inputs: Sequence[Tensor], stages: int) -> Cut:
        capture = trace(model, tuple(inputs))
        plan = partition(capture, estimate(capture, model), stages)
        graph = link(capture, plan)
        return cls(capture, graph, generate(capture, plan, graph, model))


class Rig:
    """A model on the devices of its ranks."""

    def __init__(
        self, model: nn.Module, cut: Cut, setting: Setting, lanes: Sequence[Lane], backend: Backend
    ) -> None:
        self._cut = cut
        self._setting = setting
        self._placement = Placement.loop(len(setting.places), setting.stages_per_rank)
        self._runtime = Runtime(
            model,
            cut.capture,
            cut.programs,
            cut.graph,
            self._placement,
            lanes,
            backend,
            load,
            recompute=setting.recompute,
        )

    def step(
        self, inputs: Sequence[Tensor], target: Any, loss_fn: Callable[[Any, Any], Tensor]
    ) -> Outcome:
        """One training step."""
        batches = scatter(self._cut.capture.signature, inputs, self._setting.chunks)
        executable = self._executable(SCHEDULES[self._setting.schedule], batches.count)
        return self._runtime.run_step(
            executable, batches, loss_task(batches, loss_fn, target), seed=0, step=0
        )

    def call(
        self, inputs: Sequence[Tensor], loss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Sequence[Sequence[Any]]]:
        """Forwards, a loss of the caller's own over the joined first output, backwards.

        The loss, and per micro-batch the gradients of the inputs.
        """
        batches = scatter(self._cut.capture.signature, inputs, self._setting.chunks)
        forwards = self._executable(SCHEDULES["forward"], batches.count)
        call = self._runtime.forward(forwards, batches, seed=0, step=0, keeps_graph=True)
        first = [leaves[0].detach() for leaves in call.outputs]
        rest = [None] * (len(call.outputs[0]) - 1)
        joined = torch.cat(first).requires_grad_()
        value = loss(joined)
        (grad,) = torch.autograd.grad(value, [joined])
        pieces = grad.split([piece.size(0) for piece in first])
        backwards = self._executable(backward_only, batches.count)
        return value.detach(), call.backward(backwards, [[piece, *rest] for piece in pieces])

    def _executable(self, generator: Any, micro_batches: int) -> Any:
        schedule = generator(self._setting.stages, self._placement.num_ranks, micro_batches)
        return self._runtime.prepare(lower(schedule, self._cut.graph, self._placement))
