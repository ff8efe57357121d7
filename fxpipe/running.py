"""The ways to run a batch: a whole step, a call without gradients, a differentiable call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fxpipe.drop_in import differentiable_call
from fxpipe.errors import ScheduleError
from fxpipe.executables import Executables
from fxpipe.feed import Feed, WholeBatch
from fxpipe.joined import JoinedOutputs
from fxpipe.optim.by_stage import UpdateByStage
from fxpipe.runtime.call import Call
from fxpipe.runtime.loss import LossTask
from fxpipe.runtime.outcome import Outcome
from fxpipe.situation import Situation


@dataclass(frozen=True)
class Seed:
    """What decides the random numbers of a step: a base and the step's number."""

    base: int
    step: int


@dataclass(frozen=True)
class Made:
    """A step that was made, and what is still to be done for it.

    Attributes:
        outcome: what the stages have made.
        output: the result; None if it was not kept.
        waits: whether gradients of inputs go on into a graph of the caller's, which may use the same
            parameters: the optimiser's step comes after that. It is no part of the step's turn, since
            a backward through that graph may need turns of its own.
    """

    outcome: Outcome
    output: Any
    waits: bool
    _feed: Feed
    _updates: UpdateByStage | None

    def pass_on(self) -> None:
        """Run the inputs' gradients back into the caller's graph."""
        self._feed.pass_on(self.outcome.input_grads)

    def update(self) -> None:
        """Take what is left of the optimiser's step, if it is to be made."""
        if self._updates is not None:
            self._updates.finish()


def run_step(
    feed: Feed,
    variants: Sequence[Situation],
    executables: Executables,
    loss: LossTask,
    seed: Seed,
    *,
    parameters: Iterable[Tensor],
    keep_output: bool,
    optimizer: Optimizer | None = None,
) -> Made:
    """Forward and backward of a batch under the schedule.

    With an optimizer its step is made, too, and for every stage as early as can be.

    Raises:
        ScheduleError: if there are gradients to compute, and no backwards in the schedule.
    """
    executable = executables.get("step" if optimizer is None else "update", variants)
    if torch.is_grad_enabled() and not executable.has_backward:
        _require_nothing_to_learn(feed, parameters)
    waits = any(tensor.requires_grad for given in feed.batches.inputs for tensor in given)
    updates = None if optimizer is None else UpdateByStage(optimizer, waits=waits)
    results: list[Any] = []

    def join(outcome: Outcome) -> None:
        results.append(feed.joined(outcome.outputs, loss.weights) if keep_output else None)

    outcome = variants[0].runtime.run_step(
        executable,
        feed.batches,
        loss,
        seed=seed.base,
        step=seed.step,
        keep_output=keep_output,
        updates=updates,
        then=join,
    )
    return Made(outcome, results.pop(), waits, feed, updates)


def _require_nothing_to_learn(feed: Feed, parameters: Iterable[Tensor]) -> None:
    inputs = (tensor for given in feed.batches.inputs for tensor in given)
    if any(tensor.requires_grad for tensor in (*parameters, *inputs)):
        raise ScheduleError(
            "the schedule has forwards only: a step would compute no gradients. Use pipe(x), which is "
            "differentiable under any schedule, take a schedule with backwards (such as '1f1b'), or "
            "make the step under torch.no_grad() to have its loss alone"
        )


def run_call(
    batch: WholeBatch, variants: Sequence[Situation], executables: Executables, seed: Seed
) -> Any:
    """All forwards; nothing is kept for a backward."""
    results: list[Any] = []

    def join(call: Call) -> None:
        results.append(batch.outputs(call.take_outputs()).result())

    _forward(batch, variants, executables, seed, join, keeps_graph=False)
    return results.pop()


def run_differentiable(
    batch: WholeBatch,
    variants: Sequence[Situation],
    executables: Executables,
    seed: Seed,
    parameters: Sequence[Tensor],
    take: Callable[[], AbstractContextManager[None]],
) -> Any:
    """All forwards; the result's backward takes a turn and runs all backwards."""
    wanted = [at for at, tensor in enumerate(batch.tensors) if tensor.requires_grad]
    joined: list[JoinedOutputs] = []

    def run() -> tuple[_Half, list[Tensor]]:
        def join(call: Call) -> None:
            joined.append(batch.outputs(call.take_outputs()))

        call = _forward(batch, variants, executables, seed, join, keeps_graph=True)
        outputs = joined[0]
        half = _Half(batch, call, outputs, variants, executables, wanted, take)
        return half, outputs.differentiable()

    made = differentiable_call(run, [batch.tensors[at] for at in wanted], parameters)
    return joined[0].result(made)


def _forward(
    batch: WholeBatch,
    variants: Sequence[Situation],
    executables: Executables,
    seed: Seed,
    join: Callable[[Call], None],
    *,
    keeps_graph: bool,
) -> Call:
    return variants[0].runtime.forward(
        executables.get("forward", variants),
        batch.batches,
        seed=seed.base,
        step=seed.step,
        keeps_graph=keeps_graph,
        then=join,
    )


class _Half:
    """A call's backward half: from the gradients of the joined outputs to those of the inputs."""

    def __init__(
        self,
        batch: WholeBatch,
        call: Call,
        outputs: JoinedOutputs,
        variants: Sequence[Situation],
        executables: Executables,
        wanted: Sequence[int],
        take: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._batch = batch.without_leaves()
        self._call = call
        self._outputs = outputs.without_values()
        self._variants = variants
        self._executables = executables
        self._wanted = wanted
        self._take = take

    def backward(
        self, grads: Sequence[Tensor | None], *, inputs_only: bool
    ) -> Sequence[Tensor | None]:
        """Run all backwards; the gradients of the inputs that require grad."""
        with self._take():
            found = self._call.backward(
                self._executables.get("backward", self._variants),
                self._outputs.gradients(grads),
                inputs_only=inputs_only,
            )
            return [self._batch.input_gradient(at, found) for at in self._wanted]
