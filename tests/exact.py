"""A pipeline against eager micro-batches: whatever a step or a call leaves behind, bit for bit.

A `Kind` is a small model with batches for it. Kinds that draw random numbers have no eager twin: theirs
is the same pipeline in one stage (see docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.signature import flatten
from tests.reference import run_eager_step, split

Batch = tuple[tuple[Any, ...], dict[str, Any]]
SCHEDULES = ("gpipe", "1f1b")
RECOMPUTE = ("never", "except_last", "always")
CHUNKS = 3


def mean_square(output: Any, target: Any = None) -> Tensor:
    """Something that every differentiable tensor of a result takes part in."""
    terms = [
        leaf.abs().square().mean() * (n + 1)
        for n, leaf in enumerate(flatten(output)[0])
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    return sum(terms[1:], terms[0])


@dataclass(frozen=True)
class Kind:
    """A model of one kind.

    Attributes:
        make: builds it; weights depend on torch's seed only.
        batch: (rows) → positional and keyword arguments; data depend on torch's seed only.
        loss: of an output and no target; None: the model's output is or has its loss.
        cuts: where stages start; a model of n stages is cut at the first n - 1. Empty: by cost.
        tied: parameters that several stages use: their gradients agree up to rounding. None: whichever
            the stages share.
        random: whether it draws random numbers in training.
        evaluates: whether it also draws in evaluation mode.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Any], Tensor] | None = mean_square
    cuts: tuple[str, ...] = ()
    tied: tuple[str, ...] | None = ()
    random: bool = False
    random_in_eval: bool = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()

    def data(self, rows: int, seed: int = 0) -> Batch:
        torch.manual_seed(100 + seed)
        return self.batch(rows)

    def pipe(self, model: nn.Module, stages: int, **options: Any) -> fxpipe.Pipeline:
        args, kwargs = self.data(6)
        options = {
            "chunks": CHUNKS,
            "costs": "estimate",
            "threads_per_rank": 1,
            "batch_norm": "per_micro_batch",
            "cuts": self.cuts[: stages - 1] or None,
            "seed": 7,
            **options,
        }
        return fxpipe.compile(
            model, ["cpu"] * stages, example_args=args, example_kwargs=kwargs, **options
        )


def vectors(*shape: int, **more: Any) -> Callable[[int], Batch]:
    """Batches of one floating tensor ``[rows, *shape]``."""
    return lambda rows: ((torch.randn(rows, *shape),), dict(more))


@dataclass
class Left:
    """What a step left behind."""

    loss: Tensor | None
    outputs: list[Any]
    """Per micro-batch; or the joined result alone."""
    input_grads: list[Tensor | None]
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def assert_exact_in_every_mode(kind: Kind, stages: int, **options: Any) -> None:
    """`assert_exact` under both schedules and every recompute mode."""
    for schedule in SCHEDULES:
        for recompute in RECOMPUTE:
            with _told(f"{schedule}, {recompute}"):
                assert_exact(kind, stages, schedule=schedule, recompute=recompute, **options)


def assert_exact_at_every_cut(kind: Kind, most: int = 0, **options: Any) -> None:
    """`assert_exact` with two stages, cut wherever the model may be (at `most` places, if not 0)."""
    cuts = legal_starts(kind)
    assert cuts, "the model can be cut"
    chosen = cuts[:: -(-len(cuts) // most)] if most else cuts
    for cut in chosen:
        with _told(f"cut at {cut}"):
            assert_exact(kind, 2, cuts=[cut], backend="inline", **options)


def legal_starts(kind: Kind) -> list[str]:
    """Every node that a second stage may begin with."""
    args, kwargs = kind.data(6)
    capture = fxpipe.trace(kind.model(), args, kwargs)
    return ["%" + capture.body[cut].name for cut in legal_cuts(capture)]


def assert_exact(kind: Kind, stages: int, **options: Any) -> None:
    """Steps and calls in training, in evaluation and in training again are what they are in eager."""
    model, twin = kind.model(), _Twin(kind)
    with kind.pipe(model, stages, **options) as pipe:
        for rows, training in ((10, True), (7, False), (6, True)):
            model.train(training)
            twin.train(training)
            mode = "train" if training else "eval"
            with _told(f"{mode}, a step of {rows} rows"):
                assert_step(pipe, kind, twin, rows)
            with _told(f"{mode}, a call of {rows} rows"), torch.no_grad():
                assert_call(pipe, kind, twin, rows)
    twin.close()


class _Twin:
    """The same model without a pipeline: eager, or a pipeline of one stage where numbers are drawn."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.model = kind.model()
        draws = kind.random or kind.random_in_eval
        self.pipe = kind.pipe(self.model, 1, recompute="never") if draws else None

    @property
    def draws(self) -> bool:
        return self.kind.random if self.model.training else self.kind.random_in_eval

    def train(self, mode: bool) -> None:
        self.model.train(mode)

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.close()

    def step(self, batch: Batch) -> Left:
        args, kwargs = batch
        if self.pipe is not None and self.draws:
            return run_step(self.pipe, self.kind, batch)
        if self.pipe is not None:
            self.pipe.steps_done += 1
        found = run_eager_step(
            self.model, args, kwargs, chunks=CHUNKS, loss_fn=self.kind.loss, deferred_norms=False
        )
        return Left(found.loss, found.outputs, found.input_grads, found.grads, found.buffers)

    def call(self, batch: Batch) -> tuple[list[Any], Sequence[int]]:
        args, kwargs = batch
        if self.pipe is not None and self.draws:
            return [self.pipe(*args, **kwargs)], (1,)
        pieces, rows, _ = split(batch, CHUNKS)
        if self.pipe is not None:
            self.pipe.steps_done += self.model.training
        return [self.model(*args, **kwargs) for args, kwargs in pieces], rows


def run_step(pipe: fxpipe.Pipeline, kind: Kind, batch: Batch) -> Left:
    """A step of a pipeline, and what it left behind."""
    tensors = [leaf for leaf in flatten(batch)[0] if isinstance(leaf, Tensor)]
    for tensor in tensors:
        tensor.grad = None
    result = pipe.step(inputs=batch, loss_fn=kind.loss)
    return Left(
        result.loss,
        [result.output],
        [tensor.grad for tensor in tensors],
        {name: p.grad for name, p in pipe.module.named_parameters()},
        {name: b.clone() for name, b in pipe.module.named_buffers()},
    )


def assert_step(pipe: fxpipe.Pipeline, kind: Kind, twin: Any, rows: int) -> None:
    """A step leaves behind what it leaves behind in the twin."""
    pipe.module.zero_grad()
    twin.model.zero_grad()
    expected = twin.step(kind.data(rows, seed=rows))
    found = run_step(pipe, kind, kind.data(rows, seed=rows))
    assert_same(found.loss, expected.loss, "loss")
    shares = [n / rows for n in _shares(rows, CHUNKS)]
    assert_joined(found.outputs[0], expected.outputs, shares)
    assert len(found.input_grads) == len(expected.input_grads)
    for n, (one, other) in enumerate(zip(found.input_grads, expected.input_grads, strict=True)):
        assert_same(one, other, f"gradient of input {n}")
    tied = shared_by_stages(pipe) if kind.tied is None else kind.tied
    assert_same_state(found, expected, tied)


def shared_by_stages(pipe: fxpipe.Pipeline) -> list[str]:
    """Parameters that more than one stage reads, or calls a module of."""
    read = [
        {id(p) for path in program.called for p in pipe.get_submodule(path).parameters()}
        | {id(p) for name, p in pipe.named_parameters() if name in program.tensors.values()}
        for program in pipe.stages
    ]
    return [name for name, p in pipe.named_parameters() if sum(id(p) in some for some in read) > 1]


def assert_same_state(
    found: Left, expected: Left, tied: Sequence[str] = (), buffers: bool = True
) -> None:
    """Gradients and buffers by name; those of `tied` parameters up to rounding."""
    assert found.grads.keys() == expected.grads.keys()
    for name, grad in expected.grads.items():
        if name in tied and grad is not None:
            torch.testing.assert_close(found.grads[name], grad)
        else:
            assert_same(found.grads[name], grad, f"gradient of {name}")
    assert found.buffers.keys() == expected.buffers.keys()
    for name, buffer in expected.buffers.items() if buffers else ():
        assert_same(found.buffers[name], buffer, f"buffer {name}")


def assert_call(pipe: fxpipe.Pipeline, kind: Kind, twin: Any, rows: int) -> None:
    """A call without gradients returns what the twin returns, and changes the same buffers."""
    args, kwargs = kind.data(rows, seed=rows)
    expected, sizes = twin.call(kind.data(rows, seed=rows))
    found = pipe(*args, **kwargs)
    assert_joined(found, expected, [n / sum(sizes) for n in sizes])
    for (name, one), other in zip(pipe.module.named_buffers(), twin.model.buffers(), strict=True):
        assert_same(one, other, f"buffer {name}")


# ---- comparing -----------------------------------------------------------------------------------


def assert_joined(found: Any, pieces: Sequence[Any], shares: Sequence[float]) -> None:
    """A result of the whole batch is the results of its micro-batches, joined."""
    ours, layout = flatten(found)
    theirs = [flatten(piece) for piece in pieces]
    if any(isinstance(leaf, list) for leaf in ours) or len(ours) != len(theirs[0][0]):
        raise AssertionError(f"results of another structure: {found!r}")
    for _, structure in theirs:
        assert layout == structure, "the structure of the result"
    columns = zip(*(leaves for leaves, _ in theirs), strict=True)
    for n, (leaf, column) in enumerate(zip(ours, columns, strict=True)):
        assert _is_joined(leaf, list(column), shares), f"result {n}: {leaf!r} of {column!r}"


def _is_joined(leaf: Any, pieces: list[Any], shares: Sequence[float]) -> bool:
    if not isinstance(leaf, Tensor):
        return all(type(leaf) is type(piece) and leaf == piece for piece in pieces)
    if leaf.dim() == 0 and leaf.is_floating_point():
        parts = [p.detach() * s for p, s in zip(pieces, shares, strict=True) if s != 0]
        return same(leaf, sum(parts[1:], parts[0]))
    if all(same(leaf, piece) for piece in pieces):
        return True
    return any(
        sum(piece.shape[dim] for piece in pieces) == leaf.shape[dim]
        and same(leaf, torch.cat([piece.detach() for piece in pieces], dim))
        for dim in range(leaf.dim())
    )


def same(one: Tensor, other: Tensor) -> bool:
    """The same bits; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout is not torch.strided:
        return other.layout is one.layout and same(
            one.coalesce().to_dense(), other.coalesce().to_dense()
        )
    return torch.equal(one, other) or bool(
        torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


def assert_same(one: Tensor | None, other: Tensor | None, what: str) -> None:
    """Both None, or the same bits."""
    if one is None or other is None:
        assert one is other, f"{what}: {one} instead of {other}"
    else:
        assert same(one, other), f"{what} differs:\n{one}\n{other}"


def _shares(total: int, count: int) -> list[int]:
    count = min(count, total)
    return [total // count + (m < total % count) for m in range(count)]


@contextmanager
def _told(where: str) -> Iterator[None]:
    """An error inside says where it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"({where})")
        raise
