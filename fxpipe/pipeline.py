"""`Pipeline`: the module that a user holds in place of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fxpipe.arguments import NO_SCALE, given_names, model_call, ready_made, require_updates
from fxpipe.capture.batch import batch_dimension
from fxpipe.capture.signature import flatten
from fxpipe.compiler import Line
from fxpipe.decided import Decided
from fxpipe.executables import Executables
from fxpipe.execution import StepResult
from fxpipe.feed import Feed, ReadyMade, WholeBatch
from fxpipe.options import Options, check_schedule
from fxpipe.recordings import Recordings
from fxpipe.running import Seed, run_call, run_differentiable, run_step
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.copies import require_one_loss
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.loss import Call, LossTask, Weights, loss_weights
from fxpipe.runtime.micro_batch import rows_of, scatter_target
from fxpipe.runtime.reentry import refuse_to_run_again
from fxpipe.runtime.rng import undrawn_if_it_fails
from fxpipe.situation import Situation, variants_of
from fxpipe.tangents import refuse_tangents
from fxpipe.turns import Turns


class Pipeline(Decided):
    """A model cut into stages that run micro-batches under a schedule; made by `fxpipe.compile`.

    It has the model's own parameters, buffers, modules, names and training flag, so optimisers,
    checkpoints and ``train()``/``eval()`` work as with the model.

    Attributes:
        steps_done: steps made so far, and calls in training mode. With an integer `seed` it decides
            the random numbers of the next one: save and restore it to resume a run exactly.
    """

    def __init__(self, model: nn.Module, options: Options, line: Line | None = None) -> None:
        lanes, backend = [open_lane(device) for device in options.devices], _backend(options)
        super().__init__(model, options, Recordings(model, options, lanes, backend, line))
        self._lanes = lanes
        self._backend = backend
        self._executables = Executables(options)
        self._turns = Turns(model, backend)
        self.steps_done = 0

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
        with self._turns.take(), undrawn_if_it_fails():
            batch, variants = self._cut(args, kwargs)
            seed = self._seed(variants)
            parameters = [p for p in self.parameters() if p.requires_grad]
            if torch.is_grad_enabled() and _follows(args, kwargs, parameters):
                result = run_differentiable(
                    batch, variants, self._executables, seed, parameters, self._take_backward
                )
            else:
                result = run_call(batch, variants, self._executables, seed)
            self._recordings.ran()
            if self.training:
                self.steps_done += 1
        return result

    def step(
        self,
        *args: Any,
        target: Any = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        weights: Weights = "samples",
        scale: float | Tensor = NO_SCALE,
        keep_output: bool = True,
        optimizer: Optimizer | None = None,
        inputs: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
        micro_batches: Iterable[Sequence[Any]] | None = None,
        **kwargs: Any,
    ) -> StepResult:
        """Forward, loss and backward of a batch under the schedule; gradients are added to ``.grad``.

        The loss of the batch is ``Σ w_i · loss_i`` over its micro-batches. With the right `weights`
        it and its gradients are those of the whole batch, however it is cut.

        Args:
            *args: the model's positional arguments.
            target: cut into micro-batches like the inputs (any container of tensors).
            loss_fn: (output, target) → 0-d floating tensor, of one micro-batch; it runs on the last
                stage. None: the output is the loss, or has a ``loss``.
            weights: the ``w_i``. ``"samples"``: a micro-batch's share of the rows, for a loss that is a
                mean over rows. ``"sum"``: 1 each, for a loss that is a sum. A function (args, kwargs,
                target) of one micro-batch → the number of things that its loss is a mean of (tokens
                with a label, say): its share of the sum of these numbers. Or one number for each
                micro-batch, taken as it is. A micro-batch of weight 0 runs forward, but has no part in
                loss and gradients, even if its loss is not a number.
            scale: multiplies all gradients, and not the loss that is returned: the scale of a
                `torch.amp.GradScaler`, or 1/n to average over n steps.
            keep_output: whether the result holds the output.
            optimizer: makes its step, too: for each stage on its own rank as soon as the stage's last
                gradient is there, while others still compute. What results is what ``optimizer.step()``
                after this would give. (None: gradients are left for you to use.)
            inputs: (args, kwargs), all arguments of a model whose own names are also the step's.
            micro_batches: in place of a whole batch, its micro-batches: (args, kwargs) or (args,
                kwargs, target) of each. Their shapes may differ; the result's output is a list.
            **kwargs: the model's keyword arguments.

        Raises:
            CaptureError: if this is a new way to call the model and cannot be recorded.
            ScheduleError: if the schedule does not fit the number of micro-batches, it has updates
                (such as ``0U``) and there is no optimizer, or it has forwards only and there are
                gradients to compute.
            TypeError: if an argument may be the model's as well as the step's, or the optimizer's step
                needs a closure (`torch.optim.LBFGS`).
            ValueError: if inputs, target, weights or loss are not as described, or the optimizer is to
                make its step with the scale of a `torch.amp.GradScaler`.
        """
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn must be a function of output and target, got {loss_fn!r}")
        if optimizer is not None:
            require_updates(optimizer, scale)
        feed: Feed
        told = given_names(target, loss_fn, weights, scale, keep_output, optimizer)
        with self._turns.take():
            with undrawn_if_it_fails():
                if micro_batches is not None:
                    calls, targets = ready_made(micro_batches, args, kwargs, inputs, target)
                    feed, variants = self._ready(calls)
                else:
                    call = model_call(self.module, args, kwargs, inputs, told)
                    feed, variants = self._cut(*call)
                    targets = self._cut_target(target, feed, variants)
                shares = loss_weights(weights, feed.batches.rows, feed.calls, targets)
                self._adopt(loss_fn, variants)
                made = run_step(
                    feed,
                    variants,
                    self._executables,
                    LossTask(loss_fn, targets, shares, float(scale)),
                    self._seed(variants),
                    parameters=self.parameters(),
                    keep_output=keep_output,
                    optimizer=optimizer,
                )
                self._recordings.ran()
                self.steps_done += 1
            if not made.waits:
                made.update()
        if made.waits:
            made.pass_on()
            with self._turns.take():
                made.update()
        return StepResult(made.outcome.loss, made.output, made.outcome.timeline)

    @contextmanager
    def _take_backward(self) -> Iterator[None]:
        """A turn for the backward of a call."""
        with self._turns.take(), self._recordings.running():
            yield

    def _cut(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[WholeBatch, Sequence[Situation]]:
        """A batch cut into micro-batches, and the recording that each of them runs through."""
        refuse_tangents([*flatten((args, dict(kwargs)))[0], *self.parameters()])
        situation = self._recordings.situation(args, kwargs)
        signature, varying = situation.line.capture.signature, situation.varying
        batch = WholeBatch(signature, args, kwargs, self._options.chunks, varying)
        return batch, variants_of(
            [situation] * batch.batches.count, batch.batches.rows, batch.calls
        )

    def _ready(self, calls: Sequence[Call]) -> tuple[ReadyMade, Sequence[Situation]]:
        """Ready-made micro-batches, and the recording that each of them runs through."""
        refuse_tangents([*flatten(tuple(calls))[0], *self.parameters()])
        situations = [
            self._recordings.situation(args, kwargs, is_cut=True) for args, kwargs in calls
        ]
        rows = [
            rows_of(
                each.line.capture.signature, [x for x in flatten(call)[0] if isinstance(x, Tensor)]
            )
            for each, call in zip(situations, calls, strict=True)
        ]
        variants = variants_of(situations, rows, lambda: calls)
        return ReadyMade([each.line.capture.signature for each in variants], calls), variants

    def _cut_target(self, target: Any, feed: Feed, variants: Sequence[Situation]) -> list[Any]:
        along = batch_dimension(variants[0].line.capture)
        rules = self._recordings.splits.of_target
        return scatter_target(target, feed.batches.rows, along=along, rules=rules)

    def _adopt(self, loss_fn: object, variants: Sequence[Situation]) -> None:
        """Bring the parameters of a loss to the device of the last stage."""
        if isinstance(loss_fn, nn.Module):
            require_one_loss(loss_fn, self._executables.get("step", variants).devices(-1))
            last = self._lanes[variants[0].line.placement.ranks[-1]]
            last.adopt([*loss_fn.parameters(), *loss_fn.buffers()])

    def capture(self, *args: Any, **kwargs: Any) -> Self:
        """Record the model for this way of calling it, without running the batch."""
        with self._turns.take():
            self._recordings.situation(args, kwargs)
        return self

    def _seed(self, variants: Sequence[Situation]) -> Seed:
        if not any(situation.draws for situation in variants):
            # A backward may draw yet (hooks): nothing is taken from the caller's generator for that.
            base = self._options.seed
            return Seed(torch.initial_seed() if base is None else base, self.steps_done)
        if self._options.seed is not None:
            refuse_to_run_again()
            return Seed(self._options.seed, self.steps_done)
        return Seed(int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64)), 0)

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
                ``threads_per_rank``, ``seed``, ``max_recordings`` and ``max_variants``, as in
                `fxpipe.compile`.

        Raises:
            TypeError: for any other choice, which would need another cut.
            ScheduleError: if the schedule cannot run on so many devices and stages.
        """
        allowed = {
            "chunks",
            "schedule",
            "recompute",
            "batch_norm",
            "backend",
            "threads_per_rank",
            "seed",
            "max_recordings",
            "max_variants",
        }
        if wrong := sorted(choices.keys() - allowed):
            raise TypeError(
                f"{', '.join(wrong)} cannot be replaced (only {', '.join(sorted(allowed))}): "
                "compile the model anew"
            )
        options, line = replace(self._options, **choices), self._recordings.line
        if line is None:
            check_schedule(options)
        made = Pipeline(
            self.module, options, None if line is None else line.on(options, self.module)
        )
        made.steps_done = self.steps_done
        return made

    def close(self) -> None:
        """End the worker threads. A closed pipeline runs nothing; its model stays usable."""
        self._turns.close()
        self._recordings.clear()
        self._executables.clear()
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
