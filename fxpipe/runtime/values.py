"""Values on their way between stages: without a graph, their tensors marked where gradients return.

A value is a tensor, a plain constant, or any container of both. Sealed, its tensors are detached,
and ``requires_grad`` of a detached tensor says whether a gradient is wanted for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxpipe.capture.containers import take_apart
from fxpipe.errors import ExecutionError

_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes))
_PythonNode: Final[type] = torch._C._FunctionBase


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """The value with `function` applied to its tensors, in order."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in _PLAIN:
        return value
    apart = take_apart(value)
    if apart is None:
        return value
    parts, children = apart
    mapped = [map_tensors(child, function) for child in children]
    if all(new is old for new, old in zip(mapped, children, strict=True)):
        return value
    return parts.make(mapped)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors inside a value, in the order `map_tensors` meets them."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) in _PLAIN:
        return []
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def seal(value: Any) -> Any:
    """The value as it is handed on: detached, marked where it required grad."""
    if isinstance(value, Tensor):
        sealed = value.detach()
        return sealed.requires_grad_() if value.requires_grad else sealed
    return map_tensors(value, seal)


def edge_of(tensor: Tensor) -> GradientEdge:
    """Where the gradient of a tensor is given to the autograd engine, without keeping the tensor."""
    node = tensor.grad_fn
    if node is None or isinstance(node, _PythonNode):
        # A leaf has no node of its own; a node written in Python does not keep its graph alive.
        return get_gradient_edge(tensor)
    return GradientEdge(node, tensor.output_nr)


Edges = GradientEdge | tuple[GradientEdge | None, ...] | None
"""A value's gradient edges: one for a tensor; for a container, one per tensor that is marked."""

Gradients = Tensor | tuple[Tensor | None, ...] | None
"""A value's gradients, in the same form."""


def edges_of(value: Any, sealed: Any) -> Edges:
    """The gradient edges of a value for the tensors that are marked in its sealed form.

    Raises:
        ExecutionError: if a tensor requires grad that is not marked: its gradient would be lost.
    """
    if isinstance(value, Tensor):
        return _edge(value, sealed) if value.requires_grad else None
    if type(value) in _PLAIN:
        return None
    pairs = zip(tensors_in(value), tensors_in(sealed), strict=True)
    edges = [(_edge(tensor, mark), mark.requires_grad) for tensor, mark in pairs]
    return tuple(edge for edge, marked in edges if marked) or None


def _edge(tensor: Tensor, sealed: Tensor) -> GradientEdge | None:
    if not tensor.requires_grad:
        return None
    if not sealed.requires_grad:
        raise ExecutionError(
            f"a stage made a tensor of shape {tuple(tensor.shape)} that requires grad, and none was "
            "expected from the recording: the model decided on something that was not recorded"
        )
    return edge_of(tensor)


def roots(edges: Edges, grads: Gradients) -> Iterator[tuple[GradientEdge, Tensor]]:
    """The edges that got a gradient, each with it."""
    if isinstance(edges, GradientEdge):
        if isinstance(grads, Tensor):
            yield edges, grads
        return
    if edges is None or grads is None or isinstance(grads, Tensor):
        return
    for edge, grad in zip(edges, grads, strict=True):
        if edge is not None and grad is not None:
            yield edge, grad
