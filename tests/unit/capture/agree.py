"""A capture against its model: everything a run leaves behind, bit for bit, at any batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fxpipe.capture.batch import Batch, resized
from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.patches import without_checkpoints
from fxpipe.capture.restore import ModelState, Randomness
from fxpipe.capture.signature import flatten
from fxpipe.capture.verify import same
from fxpipe.ir.capture import Capture

Outcome = tuple[list[Any], list[Any], list[torch.Tensor], torch.Tensor]


def assert_agrees(
    capture: Capture,
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    rows: int | None = None,
) -> None:
    """The graph gives the module's outputs, gradients, buffers and random state for `rows` rows."""
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    if rows is not None:
        leaves = resized(leaves, batch_of(capture, leaves), rows)

    def eager(given: list[Any]) -> Any:
        positional, named = layout.unflatten(given)
        return model(*positional, **named)

    def graph(given: list[Any]) -> Any:
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        outputs = GraphRunner.of(capture, model).run(tensors)
        return capture.signature.output.unflatten(list(outputs))

    wanted, found = outcome(model, leaves, eager), outcome(model, leaves, graph)
    for what, ones, twos in zip(("outputs", "gradients", "buffers"), wanted, found, strict=False):
        assert len(ones) == len(twos), what
        assert all(same(a, b) for a, b in zip(ones, twos, strict=True)), what
    assert torch.equal(wanted[3], found[3]), "random numbers"


def batch_of(capture: Capture, leaves: list[Any]) -> Batch:
    dims = tuple(leaf.batch_dim for leaf in capture.signature.inputs)
    size = next(leaf.shape[dim] for leaf, dim in zip(leaves, dims, strict=True) if dim is not None)
    return Batch(size, dims)


def outcome(model: nn.Module, leaves: list[Any], run: Callable[[list[Any]], Any]) -> Outcome:
    copies = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]
    with ModelState(model), Randomness(), without_checkpoints():
        torch.manual_seed(5)
        outputs = flatten(run(copies))[0]
        random = torch.get_rng_state()
        buffers = [buffer.clone() for buffer in model.buffers()]
        found = gradients(model, outputs)  # before buffers that autograd saved are put back
    return outputs, found, buffers, random


def gradients(model: nn.Module, outputs: list[Any]) -> list[Any]:
    roots = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not roots or not wanted:
        return []
    weights = [torch.linspace(0.5, 1.5, r.numel()).reshape(r.shape).to(r.dtype) for r in roots]
    return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))
