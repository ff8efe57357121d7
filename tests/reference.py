"""The one definition of "the same as eager": what a pipeline's step and call must give, bit for bit.

A step is gradient accumulation: micro-batches in ascending order, each with a backward of its own,
its loss weighted by its share of the rows. A call runs the model on each micro-batch in ascending
order, lets the caller's loss look at the joined outputs, and then runs a backward per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxpipe.capture.signature import flatten


@dataclass
class Eager:
    """What eager execution gave; gradients and buffers are read off the model."""

    loss: Tensor | None
    outputs: list[Any]
    """Per micro-batch, detached."""
    input_grads: list[Tensor | None]
    """Of the batch's tensors, in order; None where none is wanted."""
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def run_eager_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    chunks: int,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    target: Any = None,
    weights: Sequence[float] | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    deferred_norms: bool = True,
) -> Eager:
    """``(loss_i * w_i).backward()`` for each micro-batch, ascending."""
    pieces, rows, leaves = split((args, kwargs or {}), chunks)
    targets = split_target(target, rows)
    shares = weights or [n / sum(rows) for n in rows]
    outputs, total = [], None
    with _norms(model, deferred=deferred_norms):
        for (piece_args, piece_kwargs), piece_target, share in zip(
            pieces, targets, shares, strict=True
        ):
            with autocast():
                output = model(*piece_args, **piece_kwargs)
                loss = output if loss_fn is None else loss_fn(output, piece_target)
                if loss_fn is None and not isinstance(output, Tensor):
                    loss = output["loss"] if isinstance(output, dict) else output.loss
            (loss * share).backward()
            outputs.append(_detached(output))
            part = loss.detach() * share
            total = part if total is None else total + part
    return _result(model, total, outputs, leaves)


def run_eager_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    chunks: int,
    loss: Callable[[Sequence[Any]], Tensor],
    deferred_norms: bool = True,
) -> Eager:
    """Forwards ascending; `loss` of the outputs joined leaf by leaf; backwards ascending."""
    pieces, _, leaves = split((args, kwargs or {}), chunks)
    with _norms(model, deferred=deferred_norms):
        outputs = [model(*piece_args, **piece_kwargs) for piece_args, piece_kwargs in pieces]
    flat = [pytree.tree_leaves(output) for output in outputs]
    joined = [torch.cat([leaf.detach() for leaf in column]) for column in zip(*flat, strict=True)]
    wanted = [n for n, leaf in enumerate(flat[0]) if leaf.requires_grad]
    for n in wanted:
        joined[n].requires_grad_()
    value = loss(joined)
    # As the engine makes them: the gradient that a leaf accumulates is a copy in the leaf's layout.
    found = torch.autograd.grad(value, [joined[n] for n in wanted], allow_unused=True)
    sizes = [leaves_of[0].size(0) for leaves_of in flat]
    slices = [None if g is None else g.split(sizes) for g in found]
    for m, leaves_of in enumerate(flat):
        pairs = [
            (leaves_of[n], part[m])
            for n, part in zip(wanted, slices, strict=True)
            if part is not None
        ]
        torch.autograd.backward([tensor for tensor, _ in pairs], [grad for _, grad in pairs])
    return _result(model, value.detach(), [_detached(output) for output in outputs], leaves)


def split(batch: Any, chunks: int) -> tuple[list[Any], list[int], list[list[Tensor]]]:
    """The micro-batches of (args, kwargs), their rows, and per tensor its pieces.

    Tensors with as many rows as the first one are cut; all others go whole to each micro-batch.
    """
    leaves, structure = flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    total = tensors[0].size(0)
    count = min(chunks, total)
    columns: list[list[Any]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.size(0) == total:
            pieces = leaf.detach().tensor_split(count)
        else:
            pieces = [leaf.detach() if isinstance(leaf, Tensor) else leaf] * count
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            for piece in pieces:
                piece.requires_grad_()
        columns.append(list(pieces))
    rows = [piece.size(0) for piece in tensors[0].tensor_split(count)]
    batches = [structure.unflatten([column[m] for column in columns]) for m in range(count)]
    return batches, rows, [column for column in columns if isinstance(column[0], Tensor)]


def split_target(target: Any, rows: Sequence[int]) -> list[Any]:
    """The target of each micro-batch, cut like the batch."""

    def part(m: int) -> Any:
        begin = sum(rows[:m])
        return pytree.tree_map(
            lambda leaf: (
                leaf[begin : begin + rows[m]] if isinstance(leaf, Tensor) and leaf.dim() else leaf
            ),
            target,
        )

    return [part(m) for m in range(len(rows))]


def _result(
    model: nn.Module, loss: Tensor | None, outputs: list[Any], columns: list[list[Tensor]]
) -> Eager:
    input_grads: list[Tensor | None] = []
    for pieces in columns:
        if not pieces[0].requires_grad:
            input_grads.append(None)
        elif pieces[0] is pieces[-1] and len(pieces) > 1:
            input_grads.append(pieces[0].grad)
        else:
            input_grads.append(torch.cat([piece.grad for piece in pieces]))
    return Eager(
        loss,
        outputs,
        input_grads,
        {name: p.grad for name, p in model.named_parameters()},
        {name: b.clone() for name, b in model.named_buffers()},
    )


def _detached(output: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)


@contextmanager
def _norms(model: nn.Module, *, deferred: bool) -> Iterator[None]:
    """Running statistics updated once at the end, from all that each layer saw, call by call."""
    layers = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.track_running_stats
        and module.training
    ]
    if not deferred or not layers:
        yield
        return
    before = {layer: {n: b.clone() for n, b in layer.named_buffers()} for layer in layers}
    seen: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
    handles = [
        layer.register_forward_pre_hook(lambda layer, args: seen[layer].append(args[0].detach()))
        for layer in layers
    ]
    yield
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        for layer in layers:
            for name, value in before[layer].items():
                getattr(layer, name).copy_(value)
            if seen[layer]:
                layer(torch.cat(seen[layer]))
