"""`compile`: the straight line trace → profile → partition → link → generate, then a runtime for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from fxpipe.analysis.estimate import estimate
from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.errors import FormatError, InfeasiblePlanError
from fxpipe.example import Example
from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile, StageCost
from fxpipe.ir.plan import PartitionPlan, Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.split import Replicate, Split
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.options import Options, check_schedule, chunks_for
from fxpipe.partitioners.check import check_plan
from fxpipe.partitioners.follow import follow
from fxpipe.partitioners.partition import partition
from fxpipe.portals.edges import link
from fxpipe.runtime.devices import resolve_devices
from fxpipe.schedules.check import check
from fxpipe.schedules.registry import resolve

if TYPE_CHECKING:
    import torch

    from fxpipe.pipeline import Pipeline
    from fxpipe.runtime.backend import Backend


def compile(
    model: nn.Module,
    devices: Sequence[str | torch.device] | None = None,
    chunks: int | None = None,
    *,
    example_args: tuple[Any, ...] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    cuts: Sequence[str] | PartitionPlan | None = None,
    split: Mapping[str, Split | Replicate] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    stages_per_rank: int | None = None,
    schedule: str | Schedule | Callable[[int, int, int], Schedule] = "1f1b",
    recompute: Literal["never", "except_last", "always"] = "never",
    batch_norm: Literal["deferred", "per_micro_batch"] = "deferred",
    capture: Literal["auto", "fake", "real"] = "auto",
    costs: Literal["measure", "estimate"] | CostProfile = "measure",
    backend: Literal["local", "inline"] | Backend = "local",
    threads_per_rank: int | None = None,
    verify: bool = True,
    seed: int | None = None,
    max_recordings: int = 32,
    max_variants: int = 16,
) -> Pipeline:
    """A micro-batch pipeline that trains `model` as it is.

    Args:
        model: any module. It is not changed (on accelerators its parameters move to their stages).
        devices: one entry per rank; repeats are allowed (``["cpu"] * 4``). None: every visible
            accelerator, else two CPU workers.
        chunks: micro-batches per batch; a batch with fewer rows makes one micro-batch per row.
            None: four per rank, or those that a `Schedule` has.
        example_args: positional inputs (one batch) to capture with now; without examples the first
            call captures.
        example_kwargs: keyword inputs of the same example.
        cuts: where stages start: a module path (``"decoder.layers.3"``), ``"path@n"`` for a module's
            n-th call, or a node's name; or a `PartitionPlan` saved earlier. None: balanced by cost.
        split: how inputs are shared out over the micro-batches, where the guess is wrong: name of an
            argument → ``fxpipe.Split(dim)`` (cut along that dimension) or ``fxpipe.Replicate()``
            (whole to each). A name stands for all tensors inside the argument; ``"batch_mask"`` is
            the entry ``"mask"`` of the argument ``batch``. ``"target"`` is also the target of a step.
        dynamic: dimensions besides the batch's that vary from call to call, which one recording then
            serves: name of an input → dimension → a name, as in ``{"ids": {1: "length"}, "mask": {1:
            "length"}}``; dimensions of one name have one size (see `fxpipe.trace`). A size that varies
            without a mark is recorded anew, once for each.
        stages_per_rank: stages on each rank; which, says the schedule (most: stage s on rank ``s %
            ranks``; V-shaped ones and your own differ). None: as many as `cuts` make, else as the
            schedule has or is made for (two for ``"zb-v"`` and its like, one for most), or one, with a
            warning, where the model cannot be cut so often.
        schedule: a name, a callable (stages, ranks, micro-batches) → `Schedule`, or a `Schedule`,
            which then fits its own counts only: a last batch with fewer rows than `chunks` is refused.
        recompute: which micro-batches' activations are computed again in backward instead of kept
            (torchgpipe's modes, arXiv 2004.09910).
        batch_norm: ``"deferred"``: running statistics are updated once per step, with those of all
            micro-batches together; ``"per_micro_batch"``: once per micro-batch, as gradient
            accumulation does.
        capture: record a ``"real"`` run, a ``"fake"`` one (no memory, no arithmetic), or the better
            one for the model.
        costs: ``"measure"`` the nodes, ``"estimate"`` them, or a `CostProfile` of the same capture.
        backend: ``"local"`` (a worker thread per rank), ``"inline"`` (all in the calling thread), or
            an object.
        threads_per_rank: intra-op threads of a CPU worker; None: the cores shared out.
        verify: compare the capture with the model on one micro-batch before using it.
        seed: base of the random numbers. None: drawn from the caller's generator at each step, so
            that ``torch.manual_seed`` decides; an int is combined with ``pipe.steps_done``.
        max_recordings: ways of calling the model (modes, structures, sizes) that are kept recorded;
            the one not used for longest is dropped.
        max_variants: recordings of one such way that decide otherwise on the data of a micro-batch, or
            on the number of its rows; more are an error.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that is not among the choices, or an unknown device.
        CaptureError: if the model cannot be recorded (at the first call without examples).
        PartitionError: if it cannot be cut as asked.
        ScheduleError: if there is no such schedule, or it cannot run on so many devices; of one that a
            function makes, this is known with the first recording.
    """
    from fxpipe.pipeline import Pipeline

    if not isinstance(model, nn.Module):
        raise TypeError(f"fxpipe.compile takes an nn.Module, got {type(model).__name__}")
    if devices is not None and (isinstance(devices, str) or not isinstance(devices, Sequence)):
        raise TypeError(
            f'devices must be a list with one entry per rank, such as ["cpu"] * 2, got {devices!r}'
        )
    if example_args is not None and not isinstance(example_args, tuple | list):
        raise TypeError(
            "example_args must be a tuple of the positional inputs, got "
            f"{type(example_args).__name__}: write example_args=(x,)"
        )
    resolved = resolve_devices(devices)
    options = Options(
        devices=resolved,
        chunks=chunks_for(schedule, len(resolved)) if chunks is None else chunks,
        cuts=cuts if cuts is None or isinstance(cuts, PartitionPlan | str) else tuple(cuts),
        split=split,
        dynamic=dynamic,
        stages_per_rank=stages_per_rank,
        schedule=schedule,
        recompute=recompute,
        batch_norm=batch_norm,
        capture=capture,
        costs=costs,
        backend=backend,
        threads_per_rank=threads_per_rank,
        verify=verify,
        seed=seed,
        max_recordings=max_recordings,
        max_variants=max_variants,
    )
    check_schedule(options)
    pipe = Pipeline(model, options)
    if example_args is not None or example_kwargs is not None:
        pipe.capture(*(example_args or ()), **(example_kwargs or {}))
    return pipe


@dataclass(frozen=True)
class Line:
    """What the straight line made of one situation of a model (a mode, an argument structure)."""

    capture: Capture
    costs: CostProfile | None
    plan: PartitionPlan
    stage_graph: StageGraph
    stages: tuple[StageProgram, ...]
    placement: Placement

    def on(self, options: Options, model: nn.Module) -> Line:
        """The same cut, placed and written as another schedule wants it."""
        schedule = _schedule(self.plan, options)
        check(schedule, self.stage_graph)
        splits = schedule.splits_backward
        stages = generate(self.capture, self.plan, self.stage_graph, model, split_backward=splits)
        return replace(self, stages=stages, placement=schedule.placement)

    def stage_costs(self) -> tuple[StageCost, ...]:
        """Cost of every stage for one micro-batch of the recorded size; empty if never profiled."""
        if self.costs is None:
            return ()
        return self.costs.of_stages(self.plan, self.stage_graph)


def first_line(model: nn.Module, example: Example, options: Options) -> Line:
    """The line of a model's first situation: it decides the placement."""
    capture = captured(model, example, options)
    costs = _costs(capture, model, example, options)
    plan = _plan(capture, costs, options)
    return _finish(model, capture, costs, plan, options)


def next_line(model: nn.Module, example: Example, options: Options, first: Line) -> Line:
    """The line of another situation, cut so that no module leaves its stage."""
    return line_like(model, captured(model, example, options), options, first)


def line_like(model: nn.Module, capture: Capture, options: Options, first: Line) -> Line:
    """The line of one more capture of a model, cut so that no module leaves its stage."""
    plan = follow(first.plan, first.capture, capture)
    return _finish(model, capture, None, plan, options)


def captured(model: nn.Module, example: Example, options: Options) -> Capture:
    """The capture of an example under a pipeline's options."""
    return trace(
        model,
        example.args,
        example.kwargs,
        mode=options.capture,
        verify=options.verify,
        batch_dims=example.batch_dims,
        may_be_whole=example.may_be_whole,
        dynamic=options.dynamic,
    )


def _costs(captured: Capture, model: nn.Module, example: Example, options: Options) -> CostProfile:
    if isinstance(options.costs, CostProfile):
        if options.costs.fingerprint != captured.fingerprint():
            raise FormatError(
                "the CostProfile given as `costs` was made for another capture "
                f"({options.costs.fingerprint}, this one is {captured.fingerprint()}): profile this "
                "model with these inputs, or pass costs='measure'"
            )
        return options.costs
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    if options.costs == "estimate" or on_meta:
        return estimate(captured, model)
    return profile(captured, model, example.args, example.kwargs)


def _plan(captured: Capture, costs: CostProfile, options: Options) -> PartitionPlan:
    if isinstance(options.cuts, PartitionPlan):
        check_plan(captured, options.cuts)
        if options.cuts.num_stages != options.num_stages:
            raise InfeasiblePlanError(
                f"the plan given as `cuts` has {options.cuts.num_stages} stages, but "
                f"{len(options.devices)} devices {_told(options)}run {options.num_stages}"
            )
        return options.cuts
    if options.may_have_fewer_stages:
        return partition_for(captured, costs, options.num_stages, len(options.devices))
    return partition(captured, costs, options.num_stages, cuts=options.cuts)


def _told(options: Options) -> str:
    each = options.stages_per_rank
    return "" if each is None else f"with stages_per_rank={each} "


def partition_for(captured: Capture, costs: CostProfile, stages: int, ranks: int) -> PartitionPlan:
    """The plan with as many stages as a schedule is made for, or with one per rank where there is none.

    Raises:
        InfeasiblePlanError: if there is none with one per rank either.
    """
    try:
        return partition(captured, costs, stages)
    except InfeasiblePlanError as error:
        if stages <= ranks:
            raise
        plan = partition(captured, costs, ranks)
        warnings.warn(
            f"the schedule is made for {stages} stages on {ranks} ranks, and there is one stage per "
            f"rank instead, with which it may be worse than '1f1b': {error}",
            stacklevel=5,
        )
        return plan


def _finish(
    model: nn.Module,
    captured: Capture,
    costs: CostProfile | None,
    plan: PartitionPlan,
    options: Options,
) -> Line:
    _warn_of_divided_hooks(model, captured, plan)
    graph = link(captured, plan)
    schedule = _schedule(plan, options)
    check(schedule, graph)
    programs = generate(captured, plan, graph, model, split_backward=schedule.splits_backward)
    return Line(captured, costs, plan, graph, programs, schedule.placement)


def _warn_of_divided_hooks(model: nn.Module, captured: Capture, plan: PartitionPlan) -> None:
    """Say which hooks run no more: those of modules that lie in several stages."""
    divided = {
        span.path
        for span in captured.spans
        if len({plan.stages[name] for name in span.nodes if name in plan.stages}) > 1
    }
    for path in sorted(divided):
        module = model.get_submodule(path)
        if module._forward_hooks or module._forward_pre_hooks:
            warnings.warn(
                f"{path or 'the model'} has forward hooks, and a cut divides it: the tensor "
                "operations of the hooks are part of the stages, but their Python code is not run. "
                "Choose cuts outside of it, or put the hooks on modules inside.",
                stacklevel=4,
            )
        if module._backward_hooks or module._backward_pre_hooks:
            warnings.warn(
                f"{path or 'the model'} has backward hooks, and a cut divides it: they are not run. Put "
                "them on modules inside.",
                stacklevel=4,
            )


def _schedule(plan: PartitionPlan, options: Options) -> Schedule:
    return resolve(options.schedule, plan.num_stages, len(options.devices), options.chunks)
