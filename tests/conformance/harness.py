"""The straight line from a module to a runtime, for tests of the runtime alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxpipe.analysis.estimate import estimate
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.codegen.load import load
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.partitioners.partition import partition
from fxpipe.portals.edges import link
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.call import Call
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.instructions import Executable
from fxpipe.runtime.loss import LossTask
from fxpipe.runtime.micro_batch import MicroBatches, scatter, scatter_target
from fxpipe.runtime.outcome import Outcome
from fxpipe.runtime.runtime import Runtime
from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES

BACKENDS: dict[str, Callable[[], Backend]] = {
    "inline": InlineBackend,
    "local": lambda: LocalBackend(threads_per_rank=1),
}


def loss_task(
    batches: MicroBatches,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    target: Any = None,
    weights: Sequence[float] | None = None,
    scale: float = 1.0,
) -> LossTask:
    """A loss whose weights are the shares of the rows, if they are not told."""
    targets = scatter_target(target, batches.rows)
    return LossTask(loss_fn, targets, weights or batches.weights, scale)


@dataclass
class Rig:
    """A model cut into stages, ready to run."""

    model: nn.Module
    capture: Capture
    programs: tuple[StageProgram, ...]
    graph: StageGraph
    placement: Placement
    runtime: Runtime
    backend: Backend

    def batches(self, batch: Any, chunks: int) -> MicroBatches:
        tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
        return scatter(self.capture.signature, tensors, chunks)

    def executable(
        self, generator: str | Callable[[int, int, int], Schedule], micro_batches: int
    ) -> Executable:
        make = SCHEDULES[generator] if isinstance(generator, str) else generator
        schedule = make(self.graph.num_stages, self.placement.num_ranks, micro_batches)
        return self.runtime.prepare(lower(schedule, self.graph, self.placement))

    def step(
        self,
        *args: Any,
        chunks: int = 4,
        schedule: str = "1f1b",
        seed: int = 0,
        number: int = 0,
        **options: Any,
    ) -> Outcome:
        batches = self.batches(args, chunks)
        executable = self.executable(schedule, batches.count)
        keep = options.pop("keep_output", True)
        task = loss_task(batches, **options)
        return self.runtime.run_step(
            executable, batches, task, seed=seed, step=number, keep_output=keep
        )

    def forward(self, *args: Any, chunks: int = 4, keeps_graph: bool = True) -> Call:
        batches = self.batches(args, chunks)
        executable = self.executable("forward", batches.count)
        return self.runtime.forward(executable, batches, seed=0, step=0, keeps_graph=keeps_graph)

    def backward(
        self, call: Call, grads: Sequence[Sequence[Any]], *, inputs_only: bool = False
    ) -> Sequence[Sequence[Any]]:
        executable = self.executable(backward_only, len(grads))
        return call.backward(executable, grads, inputs_only=inputs_only)


def build(
    model: nn.Module,
    *args: Any,
    stages: int = 3,
    ranks: int | None = None,
    cuts: Sequence[str] | None = None,
    backend: str | Backend = "inline",
    recompute: str = "never",
    batch_norm: str = "deferred",
) -> Rig:
    """The line for a model called with `args`."""
    capture, programs, graph = compiled(model, args, stages, cuts)
    ranks = ranks or stages
    placement = Placement.loop(ranks, stages // ranks)
    runs_on = BACKENDS[backend]() if isinstance(backend, str) else backend
    runtime = Runtime(
        model,
        capture,
        programs,
        graph,
        placement,
        [open_lane(torch.device("cpu")) for _ in range(ranks)],
        runs_on,
        load,
        recompute=recompute,
        batch_norm=batch_norm,
    )
    return Rig(model, capture, programs, graph, placement, runtime, runs_on)


_Compiled = tuple[Capture, tuple[StageProgram, ...], StageGraph]
_COMPILED: dict[object, _Compiled] = {}


def compiled(
    model: nn.Module, args: tuple[Any, ...], stages: int, cuts: Sequence[str] | None
) -> _Compiled:
    """What the compiler makes of a model of this class; most tests differ in how they run it only."""
    kinds = tuple((tuple(a.shape), a.dtype, a.requires_grad) for a in args)
    modes = (model.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    key = (type(model), str(model), kinds, modes, stages, tuple(cuts or ()))
    if key not in _COMPILED:
        capture = trace(model, args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # costs are guesses here, as good as any
            plan = partition(capture, estimate(capture, model), stages, cuts=cuts)
        graph = link(capture, plan)
        _COMPILED[key] = (capture, generate(capture, plan, graph, model), graph)
    return _COMPILED[key]


def state_of(model: nn.Module) -> dict[str, Tensor | None]:
    """Gradients and buffers by name."""
    found: dict[str, Tensor | None] = {
        f"{name}.grad": None if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    found.update({name: b.clone() for name, b in model.named_buffers()})
    return found


def differences(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> list[str]:
    """Names under which two states differ in any bit."""
    return [name for name in one.keys() | other.keys() if not same(one.get(name), other.get(name))]


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(one, other)
