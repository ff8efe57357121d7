"""Comparing a pipeline with the eager reference, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxpipe
from fxpipe.capture.signature import flatten
from fxpipe.runtime.weights import tied_parameters
from tests.equivalence.models import Example

RUNS = [
    (schedule, recompute, backend)
    for schedule in ("gpipe", "1f1b")
    for recompute in ("never", "except_last", "always")
    for backend in ("inline", "local")
]


def build(example: Example, dropout: float) -> nn.Module:
    """The example's model, always the same weights."""
    torch.manual_seed(7)
    return example.model(dropout)


@contextmanager
def compiled(
    example: Example, model: nn.Module, stages: int, **options: Any
) -> Iterator[fxpipe.Pipeline]:
    """A pipeline captured on four rows, cut into micro-batches by estimated costs."""
    args, kwargs = example.batch(4)
    pipe = fxpipe.compile(
        model,
        ["cpu"] * stages,
        chunks=options.pop("chunks", 4),
        example_args=args,
        example_kwargs=kwargs,
        costs="estimate",
        threads_per_rank=1,
        **options,
    )
    with pipe:
        yield pipe


def same(one: Any, other: Any, what: str) -> None:
    """Assert that two results are equal bit for bit, leaf by leaf."""
    ones, structure = flatten(one)
    others, other_structure = flatten(other)
    assert structure == other_structure, what
    for at, (a, b) in enumerate(zip(ones, others, strict=True)):
        if isinstance(a, Tensor):
            assert torch.equal(a, b), f"{what}, leaf {at}: differs by {(a - b).abs().max()}"
        else:
            assert a == b, f"{what}, leaf {at}: {a!r} is not {b!r}"


def join(outputs: list[Any], weights: list[float]) -> Any:
    """Eager results of the micro-batches as a pipeline joins them."""
    flat = [flatten(output) for output in outputs]
    leaves = []
    for column in zip(*(leaves for leaves, _ in flat), strict=True):
        if isinstance(column[0], Tensor) and column[0].dim():
            leaves.append(torch.cat(column))
        elif isinstance(column[0], Tensor):
            total = column[0] * weights[0]
            for value, weight in zip(column[1:], weights[1:], strict=True):
                total = total + value * weight
            leaves.append(total)
        else:
            leaves.append(column[0])
    return flat[0][1].unflatten(leaves)


class Snapshot:
    """A model's weights and buffers, to start every run from the same point."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._state = {
            name: tensor.detach().clone()
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }

    def restore(self) -> None:
        """Put everything back, with no gradients."""
        with torch.no_grad():
            for name, tensor in [*self._model.named_parameters(), *self._model.named_buffers()]:
                tensor.copy_(self._state[name])
        self._model.zero_grad(set_to_none=True)


def grads_of(model: nn.Module) -> dict[str, Tensor | None]:
    """Gradients by name."""
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Buffers by name."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def same_grads(pipe: fxpipe.Pipeline, expected: dict[str, Tensor | None], what: str) -> None:
    """Assert equal gradients; parameters tied across stages agree up to rounding."""
    tied = tied_parameters(pipe.module, pipe.stages)
    for name, parameter in pipe.named_parameters():
        wanted = expected[name]
        assert (parameter.grad is None) == (wanted is None), f"{what}: gradient of {name}"
        if wanted is None or parameter.grad is None:
            continue
        if parameter in tied:
            torch.testing.assert_close(parameter.grad, wanted)
        else:
            assert torch.equal(parameter.grad, wanted), (
                f"{what}: gradient of {name} differs by {(parameter.grad - wanted).abs().max()}"
            )


def clone(model: nn.Module) -> nn.Module:
    """A copy that shares nothing."""
    return copy.deepcopy(model)


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
