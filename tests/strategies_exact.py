"""Hypothesis strategies: a model with its data, a pipeline's options, and what is done with them.

All of it is plain values that print as the Python that makes them. Numbers that stand for a choice
among what only the model knows (cuts, parameters, schedules that fit) count round and round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from fxpipe.capture.signature import flatten
from tests.module_steps import LENGTH
from tests.module_steps import RANDOM as RANDOM_STEPS
from tests.strategies import RANDOM, Recipe, RecipeModel, example, extras, recipes
from tests.strategies_modules import FORMS, Block, blocks, build, inputs

DTYPES: Final = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "autocast": torch.float32,
}
IGNORED: Final = -100
CHANGES: Final = ("freeze", "mode", "data", "buffer", "load", "plain", "replace")
"""A parameter is frozen or thawed; a module is put into the other mode, for one turn; a parameter gets
other data; a buffer is another tensor; the state is saved and loaded; the model itself is called; the
pipeline is replaced by one with other choices."""


@dataclass(frozen=True)
class Subject:
    """A model and its data.

    Attributes:
        shape: what the model is made of.
        count: how many tensors it takes.
        form: in what a `Block` is handed them.
        dtype: of weights and data; ``"autocast"``: fp32, and autocast around every call.
        frozen: numbers of parameters that are not trained.
        tied: pairs of parameters that are one, if they have one shape.
        own_loss: whether the model has its loss in its result, and takes the labels.
        reduction: of the loss over rows with a label: ``"mean"`` or ``"sum"``.
        follows: number of the floating input that wants a gradient; None: none does.
        hooked: numbers of parameters with a hook that changes their gradient.
    """

    shape: Recipe | Block
    count: int = 1
    form: str = "positional"
    dtype: str = "fp32"
    frozen: tuple[int, ...] = ()
    tied: tuple[tuple[int, int], ...] = ()
    own_loss: bool = False
    reduction: str = "mean"
    follows: int | None = None
    hooked: tuple[int, ...] = ()

    def model(self) -> nn.Module:
        """The model, always with the same weights."""
        inner: nn.Module = (
            RecipeModel(self.shape) if isinstance(self.shape, Recipe) else build(self.shape)
        )
        inner.to(DTYPES[self.dtype])
        for pair in self.tied:
            _tie(inner, *pair)
        parameters = list(inner.parameters())
        for number in self.frozen:
            parameters[number % len(parameters)].requires_grad_(False)
        for number in self.hooked:
            if parameters[number % len(parameters)].requires_grad:
                parameters[number % len(parameters)].register_hook(lambda grad: grad * 0.5)
        return WithLoss(inner, self.reduction) if self.own_loss else inner

    @property
    def draws(self) -> bool:
        """Whether any step may draw random numbers in training."""
        return any(repr(kind) in repr(self.shape) for kind in RANDOM | RANDOM_STEPS)

    def data(
        self, rows: int, seed: int, length: int = LENGTH
    ) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
        """Positional and keyword arguments, and the labels (a keyword too, if the loss is inside)."""
        kwargs: dict[str, Any] = {}
        if isinstance(self.shape, Recipe):
            args: tuple[Any, ...] = example(self.shape, rows, seed)
            kwargs = extras(self.shape, rows, seed)
        else:
            args = inputs(self.form, self.count, rows, seed, length)
        leaves, structure = flatten((args, kwargs))
        leaves = [x.to(DTYPES[self.dtype]) if _floats(x) else x for x in leaves]
        if self.follows is not None:
            floating = [x for x in leaves if _floats(x)]
            floating[self.follows % len(floating)].requires_grad_()
        labels = torch.arange(rows).remainder(4).add(seed) % 4
        if seed % 2:
            labels[torch.arange(rows) % 5 < 2] = IGNORED
            labels[-1] = 0
        args, kwargs = structure.unflatten(leaves)
        return args, {**kwargs, "labels": labels} if self.own_loss else kwargs, labels

    def dims(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
        """Where each leaf of the arguments has its rows; None also for what is no tensor."""
        leaves = flatten((args, kwargs))[0]
        gate = kwargs.get("gate")
        return [0 if isinstance(x, Tensor) and x is not gate else None for x in leaves]


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


class WithLoss(nn.Module):
    """A model whose result has its loss."""

    def __init__(self, inner: nn.Module, reduction: str) -> None:
        super().__init__()
        self.inner, self.reduction = inner, reduction

    def forward(self, *given: Any, labels: Tensor, **named: Any) -> dict[str, Any]:
        output = self.inner(*given, **named)
        return {"loss": loss_of(output, labels, self.reduction), "output": output}


def loss_of(output: Any, labels: Tensor | None, reduction: str = "mean") -> Tensor:
    """Something that every floating tensor of a result takes part in, row by row that has a label."""
    tensors = [x for x in flatten(output)[0] if _floats(x)]
    rows = [x.abs().square().flatten(1).mean(1) * (n + 1) for n, x in enumerate(tensors) if x.dim()]
    if not rows:
        raise ValueError("nothing to make a loss of")
    each = sum(rows[1:], rows[0])
    if labels is not None:
        counted = labels != IGNORED
        each = each[counted] * (1 + labels[counted])
    total = each.mean() if reduction == "mean" else each.sum()
    for x in tensors:
        if not x.dim():
            total = total + 0.5 * x
    return total


def labelled(args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> int:
    """The rows of a micro-batch that count."""
    labels = kwargs.get("labels", target)
    return int((labels != IGNORED).sum())


def _tie(model: nn.Module, one: int, other: int) -> None:
    """Make two parameters one, the first one's."""
    names = [name for name, _ in model.named_parameters()]
    keep, lose = names[one % len(names)], names[other % len(names)]
    kept, lost = model.get_parameter(keep), model.get_parameter(lose)
    if kept.shape == lost.shape and "parametrizations" not in keep + lose:
        path, _, name = lose.rpartition(".")
        setattr(model.get_submodule(path), name, kept)


@dataclass(frozen=True)
class Choices:
    """How a pipeline runs.

    Attributes:
        cuts: numbers of cuts among those that are left.
        schedule: number of a schedule among those that fit.
    """

    ranks: int = 2
    per_rank: int = 1
    cuts: tuple[int, ...] = ()
    schedule: int = 0
    recompute: str = "never"
    batch_norm: str = "per_micro_batch"
    backend: str = "inline"
    chunks: int = 2
    seed: int | None = None
    verify: bool = False

    def options(self) -> dict[str, Any]:
        """Those that `fxpipe.compile` takes as they are."""
        names = ("recompute", "batch_norm", "backend", "chunks", "seed", "verify")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Turn:
    """One thing that is done with the pipeline.

    Attributes:
        how: ``"step"``, ``"ready"`` (a step of ready-made micro-batches of other sizes), ``"call"`` with
            a backward, ``"late"``: a call whose backward comes after the model was in the other mode,
            ``"forward"`` without gradients, ``"inference"`` in inference mode, or
            ``"fails"``: a step whose last loss raises an error.
        rows: of the batch.
        weights: of a step: ``"samples"``, ``"sum"``, ``"labelled"``, or numbers.
        learn: whether an optimiser makes a step afterwards, and the gradients are dropped.
        updates: whether it does so stage by stage, within the step.
        change: what is done before (see `CHANGES`), with the thing of that `number`.
        length: of a `Block`'s data.
    """

    how: str = "step"
    training: bool = True
    rows: int = 5
    weights: str | tuple[float, ...] = "samples"
    scale: float = 1.0
    learn: bool = True
    updates: bool = False
    change: str = ""
    number: int = 0
    length: int = LENGTH


@dataclass(frozen=True)
class Case:
    """An example: print it, and paste it into a regression test."""

    subject: Subject
    choices: Choices
    turns: tuple[Turn, ...]


_NUMBER = st.integers(0, 31)
_ALL = tuple(range(64))
_FROZEN = st.lists(_NUMBER, max_size=4, unique=True).map(tuple)
_BF16 = frozenset({"spectral"})
_FP64 = frozenset({"in_half"})


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    """Models of both kinds, in every type, with frozen and tied parameters."""
    dtype = draw(st.sampled_from(tuple(DTYPES)))
    random = draw(st.booleans())
    if draw(st.booleans()):
        shape: Recipe | Block = draw(recipes(10, frozenset() if random else RANDOM, has_more=True))
    else:
        unfit = {"bf16": _BF16, "fp16": _BF16, "fp64": _FP64, "autocast": _BF16}.get(
            dtype, frozenset()
        )
        shape = draw(blocks(without=unfit if random else unfit | RANDOM_STEPS))
    pairs = st.tuples(_NUMBER, _NUMBER)
    frozen = draw(st.one_of(_FROZEN, _FROZEN, st.just(_ALL)))
    return Subject(
        shape,
        draw(st.integers(1, 3)),
        draw(st.sampled_from(("positional", *FORMS))),
        dtype,
        frozen,
        draw(st.one_of(st.just(()), st.lists(pairs, max_size=3).map(tuple))),
        draw(st.booleans()),
        draw(st.sampled_from(("mean", "sum"))),
        draw(st.sampled_from((0, 1, -1) if frozen == _ALL else (None, 0, 1, -1))),
        draw(st.one_of(st.just(()), st.lists(_NUMBER, max_size=2).map(tuple))),
    )


_CHOICES = st.builds(
    Choices,
    ranks=st.sampled_from((2, 2, 2, 3, 3, 4, 1)),
    per_rank=st.sampled_from((1, 1, 2, 2, 2, 4, 3)),
    cuts=st.lists(_NUMBER, min_size=15, max_size=15).map(tuple),
    schedule=_NUMBER,
    recompute=st.sampled_from(("never", "except_last", "always")),
    batch_norm=st.sampled_from(("per_micro_batch", "deferred")),
    backend=st.sampled_from(("inline", "local")),
    chunks=st.integers(1, 6),
    seed=st.sampled_from((None, 3)),
    verify=st.booleans(),
)
_WEIGHTS = st.one_of(
    st.sampled_from(("samples", "sum", "labelled")),
    st.lists(st.sampled_from((1.0, 0.5, 0.0, 0.3)), min_size=5, max_size=5).map(
        lambda rest: (0.7, *rest)
    ),
)
_TURN = st.builds(
    Turn,
    how=st.sampled_from(
        ("step", "step", "step", "ready", "call", "late", "forward", "inference", "fails")
    ),
    training=st.sampled_from((True, True, False)),
    rows=st.one_of(st.integers(1, 13), st.sampled_from((6, 12))),
    weights=_WEIGHTS,
    scale=st.sampled_from((1.0, 1.0, 0.5, 3.0)),
    learn=st.booleans(),
    updates=st.booleans(),
    change=st.one_of(st.just(""), st.just(""), st.sampled_from(CHANGES)),
    number=_NUMBER,
    length=st.sampled_from((LENGTH, LENGTH, LENGTH, 1, 5)),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A model, a pipeline of it, and two or three turns."""
    turns = draw(st.lists(_TURN, min_size=2, max_size=3))
    return Case(draw(subjects()), draw(_CHOICES), tuple(turns))


def smaller(case: Case, **choices: Any) -> Case:
    """The case with other choices: for trying out what a failure depends on."""
    return replace(case, choices=replace(case.choices, **choices))


def pick(numbers: Sequence[int], among: Sequence[int], count: int) -> list[int]:
    """`count` different ones, ascending, as numbers say."""
    left, picked = list(among), []
    for number in numbers[:count]:
        picked.append(left.pop(number % len(left)))
    return sorted(picked)
