"""Tensors that are taken apart and handed on all together: ``torch.cat(list(x))``.

    x ── unbind ──▶ (x0, x1, …) ──▶ cat           one step, however many rows there are

The parts need no node each then, of which there would be as many as rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from fxpipe.capture import functions
from fxpipe.ir.capture import Rebuilt, Span

ALL_READ = "read_whole"
"""In a node's meta: the tuple it returns is an argument of another node, as a whole."""


def taken_apart(value: Any, known: Callable[[Any], torch.fx.Node | None]) -> torch.fx.Node | None:
    """The node that returned just the tensors of a list or tuple, in order; None if none did."""
    if type(value) not in (list, tuple) or not value:
        return None
    if not all(isinstance(each, torch.Tensor) for each in value):
        return None
    nodes = [known(each) for each in value]
    source = _source(nodes[0])
    if source is None or len(source.meta["spec"]) != len(nodes):
        return None
    for index, node in enumerate(nodes):
        if node is None or _source(node) is not source or node.args[1] != index:
            return None
    source.meta[ALL_READ] = True
    return source


def _source(node: torch.fx.Node | None) -> torch.fx.Node | None:
    """What a node takes a part of, if that is a function that takes a tensor apart."""
    if node is None or node.target is not operator.getitem:
        return None
    source = node.args[0]
    is_apart = isinstance(source, torch.fx.Node) and functions.returns_parts(source.target)
    return source if is_apart else None  # type: ignore[return-value]


def without_unread_parts(graph: torch.fx.Graph, spans: Iterable[Span | None]) -> list[Span | None]:
    """Take parts out of the graph that nothing reads, as they were read all together; the spans then."""
    kept = list(spans)
    handed = {name for span in kept if span is not None for name in _handed(span)}
    unread = [
        part
        for node in graph.nodes
        if node.meta.get(ALL_READ)
        for part in node.users
        if part.target is operator.getitem and not part.users and part.name not in handed
    ]
    if not unread:
        return kept
    names = {part.name for part in unread}
    for part in unread:
        graph.erase_node(part)
    return [None if span is None else _without(span, names) for span in kept]


def _handed(span: Span) -> Iterator[str]:
    found: list[str] = []
    rebuilt = [each for each in (*span.args, *span.kwargs.values()) if isinstance(each, Rebuilt)]
    arguments = (span.args, dict(span.kwargs), tuple(each.leaves for each in rebuilt))
    torch.fx.node.map_arg(arguments, lambda node: found.append(node.name))
    yield from found


def _without(span: Span, names: set[str]) -> Span:
    return replace(
        span,
        nodes=tuple(name for name in span.nodes if name not in names),
        outputs={name: steps for name, steps in span.outputs.items() if name not in names},
        changed={name: steps for name, steps in span.changed.items() if name not in names},
    )
