"""The model of a command line and the batch it is to run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from fxpipe.cli.imports import import_object
from fxpipe.cli.inputs import make_inputs

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Example:
    """A model with one batch of inputs."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def rows(self) -> int:
        """Rows of the batch; 1 if no input has any."""
        from fxpipe.capture.batch import find_batch
        from fxpipe.capture.signature import flatten

        batch = find_batch(flatten((self.args, self.kwargs))[0])
        return batch.size if batch is not None else 1

    def micro_batch(self, chunks: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs of the first of `chunks` micro-batches."""
        from fxpipe.capture.batch import find_batch, resized
        from fxpipe.capture.signature import flatten

        leaves, layout = flatten((self.args, self.kwargs))
        batch = find_batch(leaves)
        if batch is not None:
            leaves = resized(leaves, batch, max(1, batch.size // chunks))
        args, kwargs = layout.unflatten(leaves)
        return args, kwargs


def load_example(
    spec: str, inputs: Sequence[str] | None, high: int, seed: int, evaluation: bool
) -> Example:
    """The model that ``package.module:factory`` makes, and its inputs.

    Raises:
        typer.BadParameter: if there is no such factory, if it returns no model, or if there are
            no inputs.
    """
    import torch

    torch.manual_seed(seed)
    made = import_object(spec, "model")
    if not isinstance(made, torch.nn.Module):
        if not callable(made):
            raise typer.BadParameter(f"{spec} is neither a model nor a function that makes one")
        made = made()
    model, args, kwargs = _taken_apart(spec, made)
    if inputs:
        args, kwargs = make_inputs(inputs, high)
    elif args is None:
        raise typer.BadParameter(
            f"{spec} returns a model without inputs: describe them, as in --input 'f32[8,3,32,32]'"
        )
    if evaluation:
        model.eval()
    return Example(model, args, kwargs)


def _taken_apart(
    spec: str, made: object
) -> tuple[nn.Module, tuple[Any, ...] | None, dict[str, Any]]:
    from torch import nn

    parts = made if isinstance(made, tuple) else (made,)
    if not parts or len(parts) > 3 or not isinstance(parts[0], nn.Module):
        raise typer.BadParameter(
            f"{spec} returned {type(made).__name__}: expected a model, (model, args) or "
            "(model, args, kwargs)"
        )
    model = parts[0]
    args: tuple[Any, ...] | None = None
    if len(parts) > 1:
        args = tuple(parts[1]) if isinstance(parts[1], (tuple, list)) else (parts[1],)
    kwargs = dict(parts[2]) if len(parts) > 2 else {}
    return model, args, kwargs
