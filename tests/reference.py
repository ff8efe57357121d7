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


Weights = Any
"""``"samples"``, ``"sum"``, one number per micro-batch, or a function of args, kwargs and target."""


def run_eager_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    chunks: int,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    target: Any = None,
    weights: Weights = None,
    scale: float = 1.0,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    deferred_norms: bool = True,
    dims: Sequence[int | None] | None = None,
) -> Eager:
    """``(loss_i * w_i).backward()`` for each micro-batch, ascending.

    `dims`: where each tensor of (args, kwargs) has its rows; None: see `split`.
    """
    pieces, rows, columns = split((args, kwargs or {}), chunks, dims)
    targets = split_target(target, rows)
    shares = shares_of(weights, pieces, targets, rows)
    with _norms(model, deferred=deferred_norms):
        total, outputs = _accumulate(model, pieces, targets, shares, loss_fn, scale, autocast)
    return _result(model, total, outputs, columns, dims)


def run_eager_micro_batches(
    model: nn.Module,
    micro_batches: Sequence[tuple[Any, ...]],
    *,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    weights: Weights = "samples",
    rows: Sequence[int],
    scale: float = 1.0,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    deferred_norms: bool = True,
) -> Eager:
    """The same for ready-made micro-batches, (args, kwargs) or (args, kwargs, target) of each."""
    pieces = [(each[0], each[1]) for each in micro_batches]
    targets = [each[2] if len(each) == 3 else None for each in micro_batches]
    shares = shares_of(weights, pieces, targets, rows)
    with _norms(model, deferred=deferred_norms):
        total, outputs = _accumulate(model, pieces, targets, shares, loss_fn, scale, autocast)
    return _result(model, total, outputs, [], None)


def _accumulate(
    model: nn.Module,
    pieces: Sequence[Any],
    targets: Sequence[Any],
    shares: Sequence[float],
    loss_fn: Callable[[Any, Any], Tensor] | None,
    scale: float,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[Tensor | None, list[Any]]:
    """The loss of the batch and the outputs. A micro-batch of weight 0 runs forward only."""
    outputs, total = [], None
    for (args, kwargs), target, share in zip(pieces, targets, shares, strict=True):
        with autocast():
            output = model(*args, **kwargs)
            loss = None if share == 0 else _loss(output, target, loss_fn)
        outputs.append(_detached(output))
        if loss is not None:
            (loss * share * scale).backward()
            part = loss.detach() * share
            total = part if total is None else total + part
    return total, outputs


def _loss(output: Any, target: Any, loss_fn: Callable[[Any, Any], Tensor] | None) -> Tensor:
    if loss_fn is not None:
        return loss_fn(output, target)
    if isinstance(output, Tensor):
        return output
    return output["loss"] if isinstance(output, dict) else output.loss


def shares_of(
    weights: Weights, pieces: Sequence[Any], targets: Sequence[Any], rows: Sequence[int]
) -> list[float]:
    """What the loss of each micro-batch weighs in that of the batch."""
    if weights is None or weights == "samples":
        return [n / sum(rows) for n in rows]
    if weights == "sum":
        return [1.0] * len(rows)
    if callable(weights):
        pairs = zip(pieces, targets, strict=True)
        counts = [float(weights(args, kwargs, target)) for (args, kwargs), target in pairs]
        return [count / sum(counts) for count in counts]
    return [float(weight) for weight in weights]


def run_eager_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    chunks: int,
    loss: Callable[[Sequence[Any]], Tensor] | None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    deferred_norms: bool = True,
    dims: Sequence[int | None] | None = None,
    between: Callable[[], object] = lambda: None,
) -> Eager:
    """Forwards ascending; `loss` of the outputs joined tensor by tensor; backwards ascending.

    `loss` None: forwards alone. Results without dimensions are joined as ``Σ w_i · value_i`` over the
    shares of the rows. A tensor that is returned twice is one tensor of the joined result too.
    `between`: done before the backwards.
    """
    pieces, rows, columns = split((args, kwargs or {}), chunks, dims)
    shares = shares_of("samples", pieces, [None] * len(rows), rows)
    outputs = []
    with _norms(model, deferred=deferred_norms):
        for piece_args, piece_kwargs in pieces:
            with autocast():
                outputs.append(model(*piece_args, **piece_kwargs))
    value = None
    between()
    if loss is not None:
        flat = [[x for x in flatten(o)[0] if isinstance(x, Tensor)] for o in outputs]
        first = [_first(flat, n) for n in range(len(flat[0]))]
        joined = [_joined([leaves[n] for leaves in flat], shares) for n in first]
        joined = [joined[n] for n in first]
        value = loss(joined)
        # As the engine makes them: what a leaf accumulates is a copy in the leaf's layout.
        wanted = [n for n in sorted(set(first)) if joined[n].requires_grad]
        found = torch.autograd.grad(value, [joined[n] for n in wanted], allow_unused=True)
        _run_back(flat, dict(zip(wanted, found, strict=True)), shares)
    last = None if value is None else value.detach()
    return _result(model, last, [_detached(output) for output in outputs], columns, dims)


def _first(outputs: Sequence[Sequence[Tensor]], n: int) -> int:
    """The first place of the tensor that stands in place n of the results."""
    return next(k for k in range(n + 1) if all(leaves[k] is leaves[n] for leaves in outputs))


def _joined(pieces: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """A leaf of the whole batch: one that a gradient may be asked for."""
    if pieces[0].dim():
        whole = torch.cat([piece.detach() for piece in pieces])
    else:
        whole = pieces[0].detach() * shares[0]
        for piece, share in zip(pieces[1:], shares[1:], strict=True):
            whole = whole + piece.detach() * share
    return whole.requires_grad_(any(piece.requires_grad for piece in pieces))


def _run_back(
    outputs: Sequence[Sequence[Tensor]],
    grads: dict[int, Tensor | None],
    shares: Sequence[float],
) -> None:
    """The backward of each micro-batch, ascending, given the gradients of the joined outputs."""
    parts = {}
    for n, grad in grads.items():
        if grad is not None and grad.dim():
            parts[n] = grad.split([given[n].size(0) for given in outputs])
        elif grad is not None:
            parts[n] = tuple(grad * share for share in shares)
    for m, given in enumerate(outputs):
        pairs = [(given[n], part[m]) for n, part in parts.items() if given[n].requires_grad]
        if pairs:
            torch.autograd.backward([tensor for tensor, _ in pairs], [grad for _, grad in pairs])


def split(
    batch: Any, chunks: int, dims: Sequence[int | None] | None = None
) -> tuple[list[Any], list[int], list[list[Tensor]]]:
    """The micro-batches of (args, kwargs), their rows, and per tensor its pieces.

    Tensors with as many rows as the first one are cut, if no `dims` are told; all others go whole to
    each micro-batch. A tensor that is given twice is one tensor of each micro-batch too.
    """
    leaves, structure = flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if dims is None:
        total = tensors[0].size(0)
        dims = [0 if tensor.dim() and tensor.size(0) == total else None for tensor in tensors]
    total = next(t.size(d) for t, d in zip(tensors, dims, strict=True) if d is not None)
    count = min(chunks, total)
    of = {
        id(tensor): _pieces(tensor, dim, count) for tensor, dim in zip(tensors, dims, strict=True)
    }
    columns = [of[id(leaf)] if isinstance(leaf, Tensor) else [leaf] * count for leaf in leaves]
    rows = [len(piece) for piece in torch.arange(total).tensor_split(count)]
    batches = [structure.unflatten([column[m] for column in columns]) for m in range(count)]
    return batches, rows, [column for column in columns if isinstance(column[0], Tensor)]


def _pieces(tensor: Tensor, dim: int | None, count: int) -> list[Tensor]:
    whole = tensor.detach()
    if dim is None and not tensor.requires_grad:
        return [whole.clone() for _ in range(count)]  # the model may write into it
    pieces = [whole] * count if dim is None else list(whole.tensor_split(count, dim))
    if tensor.requires_grad:
        for piece in pieces:
            piece.requires_grad_()
    return pieces


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
    model: nn.Module,
    loss: Tensor | None,
    outputs: list[Any],
    columns: list[list[Tensor]],
    dims: Sequence[int | None] | None = None,
) -> Eager:
    input_grads: list[Tensor | None] = []
    for at, pieces in enumerate(columns):
        if all(piece.grad is None for piece in pieces):
            input_grads.append(None)
        elif pieces[0] is pieces[-1] and len(pieces) > 1:
            input_grads.append(pieces[0].grad)
        else:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in pieces]
            input_grads.append(torch.cat(grads, 0 if dims is None else dims[at] or 0))
    return Eager(
        loss,
        outputs,
        input_grads,
        {name: p.grad for name, p in model.named_parameters()},
        {name: b.clone() for name, b in model.named_buffers()},
    )


def _detached(output: Any) -> Any:
    """Tensors in lists, tuples and dicts detached; other classes stay as the model made them.

    Libraries register some of theirs with pytree, and what they make anew is not always the same.
    """
    return pytree.tree_map(
        lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf,
        output,
        is_leaf=lambda value: not isinstance(value, list | tuple | dict),
    )


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
    seen: dict[nn.Module, dict[int, list[Tensor]]] = {layer: {} for layer in layers}
    calls: dict[nn.Module, int] = {}

    def see(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        call = calls[layer] = calls.get(layer, -1) + 1
        seen[layer].setdefault(call, []).append(args[0].detach())

    handles = [model.register_forward_pre_hook(lambda module, args: calls.clear())]
    handles += [layer.register_forward_pre_hook(see) for layer in layers]
    yield
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        for layer in layers:
            for name, value in before[layer].items():
                getattr(layer, name).copy_(value)
            for inputs in seen[layer].values():
                layer(torch.cat(inputs))
