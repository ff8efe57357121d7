"""`Pipeline`: the module that a user holds in place of the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxpipe.capture.batch import find_batch, resized
from fxpipe.capture.rows import choose_batch
from fxpipe.capture.signature import flatten
from fxpipe.capture.situation import batch_dimension, situation_of
from fxpipe.compiler import Line, first_line, next_line
from fxpipe.errors import CaptureError, ExecutionError
from fxpipe.execution import StepResult
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.ir.timeline import Timeline
from fxpipe.options import Options
from fxpipe.report import report
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.together import together
from fxpipe.situation import Seed, Situation, predict_step, step_schedule

_MAX_SITUATIONS: Final = 32
"""Recordings kept besides the first: modes, sequence lengths, argument structures."""


class Pipeline(nn.Module):
    """A model cut into stages that run micro-batches under a schedule; made by `fxpipe.compile`.

    It has the model's own parameters, buffers, modules, names and training flag, so optimisers,
    checkpoints and ``train()``/``eval()`` work as with the model.

    Attributes:
        steps_done: steps made so far, and calls in training mode. With an integer `seed` it decides
            the random numbers of the next one: save and restore it to resume a run exactly.
    """

    def __init__(self, model: nn.Module, options: Options, line: Line | None = None) -> None:
        # Set before nn.Module.__init__, which writes `training`, a property over the model's flag.
        self.__dict__["_model"] = model
        super().__init__()
        self._options = options
        self._line = line
        self._situations: dict[Hashable, Situation] = {}
        self._backend = _backend(options)
        self._lanes = [open_lane(device) for device in options.devices]
        self._lock = threading.RLock()
        self._closed = False
        self.steps_done = 0

    # ---- the model's own names -------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The user's model."""
        model: nn.Module = self.__dict__["_model"]
        return model

    @property
    def training(self) -> bool:
        """The model's training flag."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        """Ignored: `train` and `eval` set the model's flag."""

    def train(self, mode: bool = True) -> Self:
        """Set the model's training mode."""
        self.module.train(mode)
        return self

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's parameters under the model's names."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """The model's buffers under the model's names."""
        return self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """The model's modules under the model's names."""
        modules: Iterator[tuple[str, nn.Module]] = self.module.named_modules(*args, **kwargs)
        return modules

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The model's direct children."""
        return self.module.named_children()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The model's state, loadable into the plain model and into any other partition of it."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the model's state."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        """What is known of the cut."""
        made = str(self._line.plan) if self._line is not None else "not captured yet"
        return f"{made}; {len(self._options.devices)} ranks, {self._options.chunks} micro-batches"

    # ---- running ---------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result for the batch, from micro-batches run through the stages.

        In grad mode it is differentiable: the pipelined backward runs when the loss is
        differentiated, and parameters accumulate their gradients in ``.grad``.

        Args:
            *args: the model's positional arguments.
            **kwargs: its keyword arguments.

        Raises:
            CaptureError: if this is a new way to call the model and cannot be recorded.
            ValueError: if the batched inputs have different numbers of rows, or none.
        """
        situation = self._situation(args, kwargs)
        seed = self._seed(situation)
        parameters = [p for p in self.parameters() if p.requires_grad]
        with self._lock:
            if torch.is_grad_enabled() and _follows(args, kwargs, parameters):
                result = situation.differentiable(args, kwargs, seed, parameters)
            else:
                result = situation.call(args, kwargs, seed)
        if self.training:
            self.steps_done += 1
        return result

    def step(
        self,
        *args: Any,
        target: Any = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        keep_output: bool = True,
        **kwargs: Any,
    ) -> StepResult:
        """Forward, loss and backward of a batch under the schedule.

        Micro-batch i's loss has the weight (its rows / the batch's rows): for a loss that is a mean
        over rows, loss and gradients are those of the whole batch. Gradients are added to ``.grad``.

        Args:
            *args: the model's positional arguments.
            target: cut into micro-batches along the first dimension of its tensors (any pytree).
            loss_fn: (output, target) → 0-d floating tensor, of one micro-batch; it runs on the last
                stage. None: the output is the loss, or has a ``loss``.
            keep_output: whether the result holds the output.
            **kwargs: the model's keyword arguments.

        Raises:
            CaptureError: if this is a new way to call the model and cannot be recorded.
            ScheduleError: if the schedule does not fit the number of micro-batches.
            ValueError: if inputs, target or loss are not as described.
        """
        situation = self._situation(args, kwargs)
        if isinstance(loss_fn, nn.Module):
            self._lanes[situation.line.placement.ranks[-1]].adopt(_tensors_of(loss_fn))
        with self._lock:
            outcome, output = situation.step(
                args,
                kwargs,
                self._seed(situation),
                target=target,
                loss_fn=loss_fn,
                keep_output=keep_output,
            )
        self.steps_done += 1
        return StepResult(outcome.loss, output, outcome.timeline)

    def capture(self, *args: Any, **kwargs: Any) -> Self:
        """Record the model for this way of calling it, without running the batch."""
        self._situation(args, kwargs)
        return self

    def _seed(self, situation: Situation) -> Seed:
        if not situation.draws:
            return Seed(0, 0)
        if self._options.seed is not None:
            return Seed(self._options.seed, self.steps_done)
        return Seed(int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64)), 0)

    def _situation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Situation:
        if self._closed:
            raise ExecutionError("this pipeline is closed: make a new one with fxpipe.compile")
        like = self._line.capture if self._line is not None else None
        key = situation_of(self.module, args, kwargs, like=like)
        found = self._situations.get(key)
        if found is None:
            with self._lock:
                found = self._record(args, kwargs, key)
                self._situations[found.line.key if like is None else key] = found
            if len(self._situations) > _MAX_SITUATIONS:
                del self._situations[next(iter(self._situations))]
        return found

    def _record(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Hashable) -> Situation:
        some_args, some_kwargs = self._micro_batch(args, kwargs)
        if self._line is None:
            line = first_line(self.module, some_args, some_kwargs, self._options)
            self._line = line
        elif self._line.key == key:
            line = self._line
        else:
            line = self._next_line(some_args, some_kwargs)
        return self._ready(line)

    def _ready(self, line: Line) -> Situation:
        return Situation(
            self.module, line, self._lanes, self._backend, self._options, self._record_variant
        )

    def _record_variant(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Situation:
        """The situation of a micro-batch that decides otherwise than those recorded before."""
        return self._ready(self._next_line(args, kwargs))

    def _next_line(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Line:
        """Recorded where the inputs are: the stages may have spread the model over devices."""
        leaves = pytree.tree_leaves((args, kwargs))
        device = next((x.device for x in leaves if isinstance(x, Tensor)), self._options.devices[0])
        with together(_tensors_of(self.module), device):
            return next_line(self.module, args, kwargs, self._options, self._made)

    def _micro_batch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with as many rows as the first micro-batch, but two at least."""
        leaves, layout = flatten((args, dict(kwargs)))
        if self._line is None:
            batch = choose_batch(self.module, leaves, layout)
        else:
            batch = find_batch(leaves, batch_dimension(self._line.capture))
        if batch is not None:
            if batch.size == 0:
                raise ValueError("the batch is empty: it has 0 rows")
            rows = max(2, -(-batch.size // min(self._options.chunks, batch.size)))
            # No input that is given whole may look as if it had the micro-batch's rows.
            others = {n for leaf in leaves for n in getattr(leaf, "shape", ())} - {batch.size}
            while rows in others:
                rows += 1
            leaves = resized(leaves, batch, rows)
        some: tuple[tuple[Any, ...], dict[str, Any]] = layout.unflatten(leaves)
        return some

    # ---- what the compiler made ------------------------------------------------------------------

    @property
    def plan(self) -> PartitionPlan:
        """Which stage every node belongs to.

        Raises:
            CaptureError: if the model has not been captured yet; so do the other properties.
        """
        return self._made.plan

    @property
    def stage_graph(self) -> StageGraph:
        """The values that cross between stages."""
        return self._made.stage_graph

    @property
    def stages(self) -> tuple[StageProgram, ...]:
        """The source of every stage."""
        return self._made.stages

    @property
    def costs(self) -> CostProfile | None:
        """What the nodes cost."""
        return self._made.costs

    @property
    def schedule(self) -> Schedule:
        """What every rank does in a step of `chunks` micro-batches."""
        return step_schedule(self._options, self._made, self._options.chunks)

    def predict(self, micro_batches: int | None = None) -> Timeline:
        """The timeline of a step, simulated with the costs of the stages.

        Args:
            micro_batches: None: as many as `chunks`.

        Raises:
            ExecutionError: if the costs are not known (a saved plan was given).
        """
        return predict_step(self._options, self._made, micro_batches or self._options.chunks)

    def report(self) -> str:
        """Tables: the stages and what they cost, what crosses between them, the predicted step."""
        predicted = self.predict() if self._made.costs is not None else None
        return report(self._made, predicted, self._options.chunks)

    @property
    def _made(self) -> Line:
        if self._line is None:
            raise CaptureError(
                "this pipeline has not captured its model yet: call it once, or give "
                "fxpipe.compile an example batch (example_args=..., example_kwargs=...)"
            )
        return self._line

    # ---- life ------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy (also by pickle) holds its own model and the same cut; it captures anew."""
        options = self._options
        if self._line is not None:
            options = replace(options, cuts=self._line.plan)
        return _remake, (self.module, options, self.steps_done)

    def replace(self, **choices: Any) -> Pipeline:
        """Another pipeline over the same model and cut, with other choices for running it.

        Args:
            **choices: any of ``chunks``, ``schedule``, ``recompute``, ``batch_norm``, ``backend``,
                ``threads_per_rank`` and ``seed``, as in `fxpipe.compile`.

        Raises:
            TypeError: for any other choice, which would need another cut.
        """
        allowed = {
            "chunks",
            "schedule",
            "recompute",
            "batch_norm",
            "backend",
            "threads_per_rank",
            "seed",
        }
        if wrong := sorted(choices.keys() - allowed):
            raise TypeError(
                f"{', '.join(wrong)} cannot be replaced (only {', '.join(sorted(allowed))}): "
                "compile the model anew"
            )
        options = replace(self._options, **choices)
        return Pipeline(
            self.module, options, None if self._line is None else self._line.on(options)
        )

    def close(self) -> None:
        """End the worker threads. A closed pipeline runs nothing; its model stays usable."""
        self._closed = True
        self._situations.clear()
        if isinstance(self._options.backend, str):
            self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _remake(model: nn.Module, options: Options, steps_done: int) -> Pipeline:
    pipe = Pipeline(model, options)
    pipe.steps_done = steps_done
    return pipe


def _backend(options: Options) -> Backend:
    if not isinstance(options.backend, str):
        return options.backend
    if options.backend == "inline":
        return InlineBackend()
    return LocalBackend(options.threads_per_rank)


def _follows(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: list[nn.Parameter]
) -> bool:
    """Whether anything in the call can have a gradient."""
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return bool(parameters) or any(isinstance(x, Tensor) and x.requires_grad for x in leaves)


def _tensors_of(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
