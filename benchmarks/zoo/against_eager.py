"""What eager execution gives for an entry of the zoo, to hold front ends against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.capture.signature import flatten
from tests.zoo.check import EXAMPLE_ROWS
from tests.zoo.entry import Entry, mean_square


@dataclass(frozen=True)
class Result:
    """The tensors of a model's output, and gradients with the names of their parameters."""

    tensors: tuple[Tensor, ...]
    grads: tuple[tuple[str, Tensor | None], ...]


def fresh(entry: Entry, *, rows: int = EXAMPLE_ROWS) -> Any:
    """A batch that no front end was captured with, made anew: a model may write into it."""
    return entry.batch(rows, 2)


def result_of(call: Callable[..., Any], batch: Any, named: list[tuple[str, Tensor]]) -> Result:
    """One run with a backward; the loss is the mean square of all outputs.

    Args:
        call: the model, or what was captured of it.
        batch: (args, kwargs).
        named: the parameters to differentiate by.
    """
    args, kwargs = batch
    torch.manual_seed(3)
    tensors = tensors_of(call(*args, **kwargs))
    wanted = [parameter for _, parameter in named]
    found = torch.autograd.grad(mean_square(tensors), wanted, allow_unused=True)
    grads = tuple((name, grad) for (name, _), grad in zip(named, found, strict=True))
    return Result(tuple(tensor.detach() for tensor in tensors), grads)


def tensors_of(output: Any) -> list[Tensor]:
    """All tensors in a model's output."""
    return [leaf for leaf in flatten(output, shared=True)[0] if isinstance(leaf, Tensor)]


def parameters_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Trained parameters under all their names."""
    named = module.named_parameters(remove_duplicate=False)
    return [(name, parameter) for name, parameter in named if parameter.requires_grad]


def close(found: Tensor | None, wanted: Tensor | None) -> bool:
    """Whether two tensors agree up to rounding (a gradient that is not there counts as zeros)."""
    if found is None or wanted is None:
        present = found if wanted is None else wanted
        return present is None or not bool(present.any())
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def all_close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> bool:
    """Whether two results have the same tensors, in whatever order their containers list them."""
    left = list(found)
    for tensor in wanted:
        at = next((n for n, other in enumerate(left) if close(other, tensor)), None)
        if at is None:
            return False
        del left[at]
    return not left


def switchable(entry: Entry) -> nn.Module:
    """The entry's model with dropout in its dropout layers, so that modes may differ."""
    torch.manual_seed(0)
    model = (entry.with_dropout or entry.build)()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
            module.p = 0.2
    return model.train()


def evaluated(call: Callable[..., Any], batch: Any) -> tuple[Tensor, ...]:
    """The output's tensors, without gradients."""
    args, kwargs = batch
    torch.manual_seed(3)
    with torch.no_grad():
        return tuple(tensors_of(call(*args, **kwargs)))
