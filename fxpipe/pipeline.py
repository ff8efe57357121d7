"""`Pipeline`: the module that a user holds in place of the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from fxpipe.capture.signature import flatten
from fxpipe.compiler import Line
from fxpipe.errors import CaptureError, ExecutionError
from fxpipe.execution import StepResult
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.ir.timeline import Timeline
from fxpipe.options import Options
from fxpipe.recordings import Recordings
from fxpipe.report import report
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.devices import open_lane
from fxpipe.situation import Seed, Situation, predict_step, step_schedule

_RUNNING: Final[ContextVar[frozenset[int]]] = ContextVar("fxpipe_running", default=frozenset())
"""Pipelines that the current context runs inside of."""


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
        self._backend = _backend(options)
        self._lanes = [open_lane(device) for device in options.devices]
        self._recordings = Recordings(model, options, self._lanes, self._backend, line)
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

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the model's part of the state of a module that holds this pipeline."""
        own = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
        try:
            found = self.module.load_state_dict(own, strict=False)
        except RuntimeError as error:
            error_msgs.append(str(error))
            return
        missing_keys += [prefix + key for key in found.missing_keys]
        unexpected_keys += [prefix + key for key in found.unexpected_keys]

    def get_submodule(self, target: str) -> nn.Module:
        """The model's submodule of that name."""
        return self.module.get_submodule(target)

    def get_parameter(self, target: str) -> nn.Parameter:
        """The model's parameter of that name."""
        return self.module.get_parameter(target)

    def get_buffer(self, target: str) -> Tensor:
        """The model's buffer of that name."""
        return self.module.get_buffer(target)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        """What is known of the cut."""
        line = self._recordings.line
        made = str(line.plan) if line is not None else "not captured yet"
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
        with self._turn():
            situation = self._recordings.situation(args, kwargs)
            seed = self._seed(situation)
            parameters = [p for p in self.parameters() if p.requires_grad]
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
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn must be a function of output and target, got {loss_fn!r}")
        with self._turn():
            situation = self._recordings.situation(args, kwargs)
            if isinstance(loss_fn, nn.Module):
                last = self._lanes[situation.line.placement.ranks[-1]]
                last.adopt([*loss_fn.parameters(), *loss_fn.buffers()])
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
        with self._turn():
            self._recordings.situation(args, kwargs)
        return self

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call after another, whichever threads they come from.

        Raises:
            ExecutionError: if the pipeline is closed, or this is called from one of its own stages.
        """
        running = _RUNNING.get()
        if id(self) in running:
            raise ExecutionError(
                "a pipeline cannot be called from inside its own step (its loss, a hook, a stage): "
                "call the model itself (pipe.module) there"
            )
        if self._closed:
            raise ExecutionError("this pipeline is closed: make a new one with fxpipe.compile")
        with self._lock:
            token = _RUNNING.set(running | {id(self)})
            try:
                yield
            finally:
                _RUNNING.reset(token)

    def _seed(self, situation: Situation) -> Seed:
        if not situation.draws:
            return Seed(0, 0)
        if self._options.seed is not None:
            return Seed(self._options.seed, self.steps_done)
        return Seed(int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64)), 0)

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
        if self._recordings.line is None:
            raise CaptureError(
                "this pipeline has not captured its model yet: call it once, or give "
                "fxpipe.compile an example batch (example_args=..., example_kwargs=...)"
            )
        return self._recordings.line

    # ---- life ------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy (also by pickle) holds its own model and the same cuts; it captures anew."""
        options, line = self._options, self._recordings.line
        if line is not None and line.plan.starts:
            options = replace(options, cuts=line.plan.starts)
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
        options, line = replace(self._options, **choices), self._recordings.line
        made = Pipeline(self.module, options, None if line is None else line.on(options))
        made.steps_done = self.steps_done
        return made

    def close(self) -> None:
        """End the worker threads. A closed pipeline runs nothing; its model stays usable."""
        self._closed = True
        self._recordings.clear()
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
    leaves, _ = flatten((args, dict(kwargs)))
    return bool(parameters) or any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
