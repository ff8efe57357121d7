"""Whatever is drawn: what a pipeline leaves behind are eager's bits.

Drawn are a model (branches, skips, writes in place, nested modules and containers, dropout, batch norm,
regions, decisions on data, arguments and results of all kinds), its type, frozen, tied and hooked
parameters, a loss in it or outside; cuts, stages per rank, any schedule that fits, recomputation; and
two or three turns: steps, steps that fail, ready-made micro-batches, differentiated calls and calls
without gradients, in training or evaluation, of any number of rows, with changes to the model and an
optimiser's step in between (`tests.strategies_exact`). Compared are results, loss, gradients (None
included), parameters, buffers, what is written into inputs, and random generators with the eager loops
of `tests.reference`, their draws keyed (`tests.keyed`).

``FXPIPE_EXAMPLES`` sets the number of examples. For other ones at every run:
``HYPOTHESIS_PROFILE=explore FXPIPE_EXAMPLES=5000 pytest tests/properties/test_exactness.py``, with
``--hypothesis-seed=N`` to repeat a run. A failure prints a `Case`: `check(Case(...))` repeats it.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from hypothesis import event, given, note, reject, settings
from torch import Tensor, nn

import fxpipe
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.signature import flatten
from fxpipe.capture.trace import trace
from fxpipe.errors import PartitionError, ScheduleError
from fxpipe.partitioners.assemble import plan_of
from fxpipe.runtime.weights import tied_parameters
from fxpipe.schedules.registry import SCHEDULES
from tests.exact import assert_joined, assert_same
from tests.keyed import KeyedTwin
from tests.reference import (
    Eager,
    run_eager_call,
    run_eager_micro_batches,
    run_eager_step,
    shares_of,
    split,
)
from tests.strategies_exact import Case, Turn, cases, labelled, loss_of, pick

EXAMPLES = int(os.environ.get("FXPIPE_EXAMPLES", "40"))
STEPS = ("step", "ready")
CALLS = ("call", "late")
REPLACED: tuple[dict[str, Any], ...] = (
    {"recompute": "always"},
    {"recompute": "never"},
    {"schedule": "gpipe"},
    {"backend": "local"},
)
TOLERANCE = {"fp32": 1e-4, "fp64": 1e-10, "bf16": 0.1, "fp16": 0.02, "autocast": 0.05}
"""Where sums have another order than eager's (see docs/exactness.md), of the largest element."""

Surroundings = Callable[[], AbstractContextManager[Any]]


@settings(max_examples=EXAMPLES)
@given(cases())
def test_whatever_is_drawn_is_eager(case: Case) -> None:
    check(case)


def check(case: Case) -> None:
    """Every turn leaves behind what eager leaves behind."""
    if not works_in_eager(case):
        reject()
    model, twin = case.subject.model(), Eagerly(case)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        pipe = stack.enter_context(pipeline(case, model))
        optimizers = [torch.optim.SGD(m.parameters(), 0.01, 0.9) for m in (model, twin.model)]
        for n, turn in enumerate(case.turns):
            if turn.change == "replace":
                pipe = stack.enter_context(pipe.replace(**REPLACED[turn.number % len(REPLACED)]))
            with told(n):
                has_learnt = one_turn(case, turn, n, pipe, twin, optimizers[0])
            if turn.learn:
                for optimizer in optimizers[has_learnt:]:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none=turn.number % 3 > 0)
            compare_parameters(model, twin.model)


@contextmanager
def told(turn: int) -> Iterator[None]:
    """Errors say in which turn; an example ends with what is refused for good reasons."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"(turn {turn})")
        raise
    except PartitionError:  # other writes in place than in the first mode: fewer legal cuts
        event("the cuts do not suit both modes")
        reject()
    except ScheduleError as error:
        if "two copies" not in str(error):
            raise
        event("a second copy is refused")
        reject()


def works_in_eager(case: Case) -> bool:
    """Whether eager execution runs the case: some writes in place come too late for a backward."""
    twin = Eagerly(case)
    try:
        for n, turn in enumerate(case.turns):
            twin.run(replace(turn, how="step") if turn.how == "fails" else turn, n)
    except (RuntimeError, ValueError, TypeError) as error:
        event(f"eager: {str(error)[:40]}")
        return False
    return True


# ---- the two sides -------------------------------------------------------------------------------


class Eagerly:
    """The eager side of a case.

    Attributes:
        model: the model.
        given: what it was handed last, a whole batch.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = case.subject.model()
        self._keyed = KeyedTwin(self.model, case.subject.draws)
        self.given: Any = None
        self._steps = 0

    def run(self, turn: Turn, number: int) -> Eager:
        """What eager execution gives for a turn."""
        choices = self.case.choices
        prepare(self.case, self.model, turn)
        args, kwargs, labels = self.case.subject.data(turn.rows, number, turn.length)
        self.given = (args, kwargs)
        common: dict[str, Any] = {
            "chunks": choices.chunks,
            "deferred_norms": choices.batch_norm == "deferred",
            "autocast": self._keyed.turn(choices.seed, self._steps, autocast_of(self.case)),
        }
        self._steps += turn.how in STEPS or turn.training
        if turn.how == "ready":
            calls = ready_made(self.case, turn, number)
            rows = rows_of(self.case, turn)
            weights = weights_of(self.case, turn)
            del common["chunks"]
            return run_eager_micro_batches(
                self.model,
                calls,
                loss_fn=loss_fn(self.case),
                weights=weights,
                rows=rows,
                scale=turn.scale,
                **common,
            )
        common["dims"] = dims_of(self.case, args, kwargs)
        if turn.how == "step":
            return run_eager_step(
                self.model,
                args,
                kwargs,
                loss_fn=loss_fn(self.case),
                target=None if self.case.subject.own_loss else labels,
                weights=weights_of(self.case, turn),
                scale=turn.scale,
                **common,
            )
        with without_gradients(self.case, turn):
            loss = joined_loss if turn.how in CALLS else None
            if turn.how == "late":
                common["between"] = lambda: use_otherwise(
                    self.case, turn, self.model, choices.chunks
                )
            return run_eager_call(self.model, args, kwargs, loss=loss, **common)


def one_turn(
    case: Case,
    turn: Turn,
    number: int,
    pipe: fxpipe.Pipeline,
    twin: Eagerly,
    optimizer: torch.optim.Optimizer,
) -> bool:
    """Run a turn on both sides and compare; then even out what may differ by rounding.

    Whether the pipeline has made the optimiser's step too.
    """
    if turn.how == "fails":
        prepare(case, twin.model, turn)
        prepare(case, pipe, turn)
        fail(case, turn, number, pipe)
        pipe.zero_grad()
        twin.model.zero_grad()
        compare_buffers(case, pipe, twin.model)
        return False
    torch.manual_seed(number)
    expected = twin.run(turn, number)
    states = generators()
    torch.manual_seed(number)
    prepare(case, pipe, turn)
    more: dict[str, Any] = {}
    if turn.updates and turn.learn and turn.how in STEPS and not is_loose(case, turn, number, pipe):
        more["optimizer"] = optimizer
    if turn.how == "ready":
        loss, output = run_ready(case, turn, number, pipe, more)
    else:
        data = case.subject.data(turn.rows, number, turn.length)
        loss, output = run(case, turn, pipe, data, more)
    assert generators() == states, "the state of random generators"
    assert_same(loss, expected.loss, "loss")
    if turn.how == "ready":
        for one, other in zip(output, expected.outputs, strict=True):
            assert_joined(one, [other], [1.0])
    else:
        assert_joined(output, expected.outputs, shares(case, turn, data))
        compare_inputs(data[:2], twin.given, expected)
    compare_gradients(case, pipe, twin.model)
    compare_buffers(case, pipe, twin.model)
    return bool(more)


def is_loose(case: Case, turn: Turn, number: int, pipe: fxpipe.Pipeline) -> bool:
    """Whether any gradient will agree up to rounding only."""
    args, kwargs, _ = case.subject.data(turn.rows, number, turn.length)
    with autocast_of(case)():
        return bool(loose(pipe.capture(*args, **kwargs)))


def run(
    case: Case, turn: Turn, pipe: fxpipe.Pipeline, data: Any, more: dict[str, Any]
) -> tuple[Tensor | None, Any]:
    """The loss and result of a turn of the pipeline."""
    args, kwargs, labels = data
    if turn.how == "step":
        with autocast_of(case)():
            result = pipe.step(
                *args,
                target=None if case.subject.own_loss else labels,
                loss_fn=loss_fn(case),
                weights=weights_of(case, turn),
                scale=turn.scale,
                **more,
                **kwargs,
            )
        return result.loss, result.output
    with without_gradients(case, turn), autocast_of(case)():
        output = pipe(*args, **kwargs)
    if turn.how not in CALLS:
        return None, output
    if turn.how == "late":
        use_otherwise(case, turn, pipe)
    loss = joined_loss([x for x in flatten(output)[0] if isinstance(x, Tensor)])
    loss.backward()
    return loss.detach(), output


def fail(case: Case, turn: Turn, number: int, pipe: fxpipe.Pipeline) -> None:
    """A step whose last micro-batch fails, forward or backward: it leaves no trace but gradients."""
    args, kwargs, _ = case.subject.data(turn.rows, number, turn.length)

    def loss_fn(output: Any, rows: Tensor) -> Tensor:
        loss = loss_of(output, None)
        if int(rows[-1]) == turn.rows - 1:
            if turn.number % 2:
                raise ZeroDivisionError("of the test")
            loss.register_hook(lambda grad: 1 / 0)
        return loss

    torch.manual_seed(number)
    states = generators()
    with autocast_of(case)():
        try:
            pipe.step(*args, loss_fn=loss_fn, target=torch.arange(turn.rows), **kwargs)
        except ZeroDivisionError:
            assert generators() == states, "the state of random generators after an error"
            return
    raise AssertionError("the step did not raise")


def prepare(case: Case, model: nn.Module, turn: Turn) -> None:
    """The mode of a turn, and the change that comes before it."""
    model.train(turn.training)
    match turn.change:
        case "freeze":
            parameter = nth(list(model.parameters()), turn)
            parameter.requires_grad_(not parameter.requires_grad)
        case "mode":
            nth(list(model.modules())[1:], turn).train(not turn.training)
        case "data":
            parameter = nth(list(model.parameters()), turn)
            parameter.data = parameter.data * 0.75
        case "buffer" if list(model.buffers()):
            name, buffer = nth(list(model.named_buffers()), turn)
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, buffer.clone())
        case "plain" if not case.subject.draws:
            args, kwargs, _ = case.subject.data(2, 5, turn.length)
            with torch.no_grad():
                getattr(model, "module", model)(*args, **kwargs)
        case "load":
            model.load_state_dict({name: x.clone() for name, x in model.state_dict().items()})


def use_otherwise(case: Case, turn: Turn, model: nn.Module, chunks: int = 1) -> None:
    """What may happen between a call and its backward."""
    model.train(not turn.training)
    if turn.training:
        args, kwargs, _ = case.subject.data(turn.rows, 7, turn.length)
        with torch.no_grad():
            for some_args, some_kwargs in split(
                (args, kwargs), chunks, dims_of(case, args, kwargs)
            )[0]:
                model(*some_args, **some_kwargs)


def dims_of(case: Case, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
    """Where each tensor of the arguments has its rows."""
    pairs = zip(flatten((args, kwargs))[0], case.subject.dims(args, kwargs), strict=True)
    return [dim for leaf, dim in pairs if isinstance(leaf, Tensor)]


def nth(things: list[Any], turn: Turn) -> Any:
    return things[turn.number % len(things)]


def without_gradients(case: Case, turn: Turn) -> AbstractContextManager[Any]:
    """The grad mode of a turn.

    A dispatch mode, such as the keyed twin's, changes which kernels run in inference mode; and what
    autocast does to a recurrent layer there cannot be recorded (it raises).
    """
    subject = case.subject
    if turn.how == "inference" and not subject.draws and subject.dtype != "autocast":
        return torch.inference_mode()
    return torch.set_grad_enabled(turn.how not in ("forward", "inference"))


def run_ready(
    case: Case, turn: Turn, number: int, pipe: fxpipe.Pipeline, more: dict[str, Any]
) -> tuple[Any, Any]:
    """The same for ready-made micro-batches."""
    with autocast_of(case)():
        result = pipe.step(
            micro_batches=ready_made(case, turn, number),
            loss_fn=loss_fn(case),
            weights=weights_of(case, turn),
            scale=turn.scale,
            **more,
        )
    return result.loss, result.output


def pipeline(case: Case, model: nn.Module) -> fxpipe.Pipeline:
    """The pipeline of a case, recorded with the batch of its first turn."""
    turn, choices = case.turns[0], case.choices
    model.train(turn.training)
    args, kwargs, _ = case.subject.data(turn.rows, 0, turn.length)
    with without_gradients(case, turn), autocast_of(case)():
        dims = case.subject.dims(args, kwargs)
        capture = trace(model, args, kwargs, verify=False, batch_dims=dims)
    places = legal_cuts(capture)
    ranks, per_rank, names = fitting(case, len(places) + 1)
    plan = plan_of(capture, pick(choices.cuts, places, ranks * per_rank - 1))
    name = names[choices.schedule % len(names)]
    note(f"{name}, {ranks} ranks x {per_rank}, cut at {plan.starts}")
    event(f"{ranks * per_rank} stages")
    event(f"schedule {name}")
    return fxpipe.compile(
        model,
        ["cpu"] * ranks,
        cuts=plan.starts or None,
        split={"gate": fxpipe.Replicate()} if "gate" in kwargs else None,
        stages_per_rank=per_rank,
        schedule=name,
        costs="estimate",
        threads_per_rank=1,
        **choices.options(),
    )


def fitting(case: Case, most_stages: int) -> tuple[int, int, list[str]]:
    """Ranks, stages per rank, and the schedules that run every step of a case."""
    choices = case.choices
    ranks = min(choices.ranks, most_stages)
    per_rank = min(choices.per_rank, most_stages // ranks)
    counts = {choices.chunks, *(min(choices.chunks, t.rows) for t in case.turns if t.how in STEPS)}
    names = [
        name
        for name in SCHEDULES
        if name != "forward" and all(fits(name, ranks * per_rank, ranks, count) for count in counts)
    ]
    return ranks, per_rank, names


def fits(name: str, stages: int, ranks: int, micro_batches: int) -> bool:
    try:
        SCHEDULES[name](stages, ranks, micro_batches)
    except ScheduleError:
        return False
    return True


# ---- what a case says ----------------------------------------------------------------------------


def autocast_of(case: Case) -> Surroundings:
    if case.subject.dtype == "autocast":
        return lambda: torch.autocast("cpu", torch.bfloat16)
    return nullcontext


def loss_fn(case: Case) -> Callable[[Any, Any], Tensor] | None:
    if case.subject.own_loss:
        return None
    return lambda output, labels: loss_of(output, labels, case.subject.reduction)


def joined_loss(tensors: list[Tensor]) -> Tensor:
    """The caller's loss of a result of the whole batch."""
    return loss_of([x for x in tensors if x.requires_grad], None)


def weights_of(case: Case, turn: Turn) -> Any:
    if turn.weights == "labelled":
        return labelled
    if isinstance(turn.weights, tuple):
        return turn.weights[: min(case.choices.chunks, turn.rows)]
    return turn.weights


def shares(case: Case, turn: Turn, data: Any) -> list[float]:
    """What results without dimensions weigh."""
    labels = data[2]
    rows = rows_of(case, turn)
    if turn.how != "step":
        return shares_of("samples", [], [], rows)
    parts = labels.tensor_split(len(rows))
    return shares_of(weights_of(case, turn), [((), {})] * len(rows), parts, rows)


def rows_of(case: Case, turn: Turn) -> list[int]:
    """Of each micro-batch; ready-made ones are the first halves of their parts."""
    count = min(case.choices.chunks, turn.rows)
    parts = torch.arange(turn.rows).tensor_split(count)
    return [len(part) - (turn.how == "ready") * (len(part) // 2) for part in parts]


def ready_made(case: Case, turn: Turn, number: int) -> list[tuple[Any, ...]]:
    """Micro-batches of their own, of different sizes."""
    made: list[tuple[Any, ...]] = []
    for m, rows in enumerate(rows_of(case, turn)):
        args, kwargs, labels = case.subject.data(rows, number + 10 * m, turn.length)
        made.append((args, kwargs) if case.subject.own_loss else (args, kwargs, labels))
    return made


def generators() -> tuple[Any, ...]:
    """The state of the generators that a caller may use."""
    return torch.get_rng_state().tolist(), random.getstate()


# ---- comparing -----------------------------------------------------------------------------------


def compare_inputs(batch: Any, eagers: Any, expected: Eager) -> None:
    """The inputs' gradients, and what the model has written into them."""
    tensors = [leaf for leaf in flatten(batch)[0] if isinstance(leaf, Tensor)]
    for n, (tensor, grad) in enumerate(zip(tensors, expected.input_grads, strict=True)):
        assert_same(tensor.grad, grad, f"gradient of input {n}")
    theirs = [leaf for leaf in flatten(eagers)[0] if isinstance(leaf, Tensor)]
    for n, (one, other) in enumerate(zip(tensors, theirs, strict=True)):
        assert_same(one.detach(), other.detach(), f"input {n}")


def compare_gradients(case: Case, pipe: fxpipe.Pipeline, eager: nn.Module) -> None:
    """Gradients are the same; those of parameters that several stages read, up to rounding."""
    tied = loose(pipe)
    ours, theirs = dict(pipe.module.named_parameters()), dict(eager.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        found, wanted = parameter.grad, theirs[name].grad
        if parameter in tied and found is not None and wanted is not None:
            assert_close(found, wanted, case, f"gradient of {name}")
            found.copy_(wanted)
        else:
            assert_same(found, wanted, f"gradient of {name}")


def compare_parameters(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert_same(one, other, name)


def loose(pipe: fxpipe.Pipeline) -> set[Tensor]:
    """The parameters whose gradients have sums in another order than eager's."""
    if pipe.schedule.replicas > 1:
        return set(pipe.module.parameters())
    return set(tied_parameters(pipe.module, pipe.stages))


def compare_buffers(case: Case, pipe: fxpipe.Pipeline, eager: nn.Module) -> None:
    """Buffers are the same; the statistics of deferred batch norms, up to rounding."""
    deferred = {
        id(buffer)
        for module in pipe.module.modules()
        if case.choices.batch_norm == "deferred" and isinstance(module, nn.BatchNorm1d)
        for buffer in module.buffers()
    }
    ours, theirs = dict(pipe.module.named_buffers()), dict(eager.named_buffers())
    assert ours.keys() == theirs.keys()
    for name, found in ours.items():
        if id(found) in deferred and found.is_floating_point():
            assert_close(found, theirs[name], case, f"buffer {name}")
            found.copy_(theirs[name])
        else:
            assert_same(found, theirs[name], f"buffer {name}")


def assert_close(found: Tensor, wanted: Tensor, case: Case, what: str) -> None:
    assert found.dtype == wanted.dtype, what
    largest = max(1e-6, float(wanted.abs().nan_to_num().max()))
    torch.testing.assert_close(
        found,
        wanted,
        rtol=0,
        atol=TOLERANCE[case.subject.dtype] * largest,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )
