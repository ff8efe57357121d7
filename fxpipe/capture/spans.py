"""Module calls that are looked through: what they made, what went in and where it came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from fxpipe.capture.containers import Shape, holds_tensors, take_apart
from fxpipe.capture.handed import Snapshot, Where
from fxpipe.ir.capture import Span

Lookup = Callable[[Any], "torch.fx.Node | None"]


@dataclass
class Frame:
    """A module call in progress.

    Attributes:
        path: of the module.
        call: how often it was called before.
        module: the module; None for the call of a module that is not part of the model.
        via: ``"call"`` or ``"forward"``.
        index: of its span in the list of spans.
        start: number of body nodes before it.
        parent: index of the span around it.
        args, kwargs: what the caller passed, as fx arguments.
        handed: the arguments that are containers, each with what it held at the start and its version.
        changed: nodes that the call put into them.
        awaits_forward: whether its own ``forward`` has yet to begin.
        aliases: tensors that got another node here although nothing was written into them:
            (id of the tensor, its node before, its node now).
    """

    path: str
    call: int
    module: torch.nn.Module | None
    via: str = "call"
    index: int = -1
    parent: int | None = None
    start: int = 0
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    handed: dict[Where, tuple[Any, Snapshot, int]] = field(default_factory=dict)
    changed: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    awaits_forward: bool = True
    aliases: list[tuple[int, torch.fx.Node, torch.fx.Node]] = field(default_factory=list)
    fixed: str | None = None

    @property
    def scope(self) -> str:
        """What keys random numbers drawn here."""
        return f"{self.path}#{self.call}"

    def finish(self, body: list[str], outputs: dict[str, tuple[str | int, ...]]) -> Span:
        """The span of the call, once it has returned."""
        return Span(
            path=self.path,
            call=self.call,
            nodes=tuple(body[self.start :]),
            args=tuple(self.args),
            kwargs=self.kwargs,
            outputs=outputs,
            parent=self.parent,
            via=self.via,
            changed=self.changed,
            fixed=self.fixed,
        )


def mutable_arguments(value: Any) -> list[tuple[Any, list[int]]]:
    """The lists, dicts and objects inside a value, each with the ids of what it holds."""
    found: list[tuple[Any, list[int]]] = []
    _collect(value, found, set())
    return found


def _collect(value: Any, found: list[tuple[Any, list[int]]], seen: set[int]) -> None:
    apart = take_apart(value)
    if apart is None or id(value) in seen:
        return
    seen.add(id(value))
    parts, children = apart
    if parts.shape not in (Shape.TUPLE, Shape.TUPLE_SUBCLASS):
        found.append((value, [id(inner) for inner in children]))
    for inner in children:
        _collect(inner, found, seen)


def changed_argument(objects: Iterable[tuple[Any, list[int]]]) -> Any:
    """The first of the objects that holds tensors and not what it held; None if there is none."""
    for value, held in objects:
        apart = take_apart(value)
        now = [id(inner) for inner in apart[1]] if apart else []
        if now != held and (holds_tensors(value) or isinstance(value, list | dict)):
            return value
    return None


def outputs_of(value: Any, lookup: Lookup) -> dict[str, tuple[str | int, ...]]:
    """Name of every node inside a returned value → the steps that lead to it."""
    found: dict[str, tuple[str | int, ...]] = {}
    _outputs(value, (), lookup, found, set())
    return found


def _outputs(
    value: Any,
    steps: tuple[str | int, ...],
    lookup: Lookup,
    found: dict[str, tuple[str | int, ...]],
    seen: set[int],
) -> None:
    if isinstance(value, torch.Tensor):
        node = lookup(value)
        if node is not None:
            found.setdefault(node.name, steps)
        return
    apart = take_apart(value)
    if apart is None or id(value) in seen:
        return
    seen.add(id(value))
    parts, children = apart
    for step, inner in zip(parts.steps(), children, strict=True):
        if isinstance(step, str | int):
            _outputs(inner, (*steps, step), lookup, found, seen)


def close_spans(spans: Iterable[Span | None], graph: torch.fx.Graph) -> tuple[Span, ...]:
    """The spans, each with the reason if it cannot be called as a module again.

    A call must read nothing but its arguments and hand nothing on but its result.
    """
    nodes = {node.name: node for node in graph.nodes}
    closed = []
    for span in spans:
        assert span is not None
        if span.fixed is None and span.nodes:
            fixed = _unseen_input(span, nodes) or _unseen_output(span, nodes)
            span = replace(span, fixed=fixed)
        closed.append(span)
    return tuple(closed)


def _unseen_input(span: Span, nodes: dict[str, torch.fx.Node]) -> str | None:
    given: set[str] = set()
    torch.fx.node.map_arg((span.args, dict(span.kwargs)), lambda node: given.add(node.name))
    inside = set(span.nodes)
    for name in span.nodes:
        for read in nodes[name].all_input_nodes:
            if read.op != "get_attr" and read.name not in inside and read.name not in given:
                return f"it reads {read.name}, which is not among its arguments"
    return None


def _unseen_output(span: Span, nodes: dict[str, torch.fx.Node]) -> str | None:
    inside = set(span.nodes)
    for name in span.nodes:
        if name in span.outputs or name in span.changed:
            continue
        for user in nodes[name].users:
            if user.name not in inside:
                return f"{user.name} reads {name}, which is not part of its result"
    return None
