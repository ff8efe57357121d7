"""Module calls that are looked through: what they made, what went in and where it came out."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from fxpipe.capture.containers import Shape, cell_content, holds_tensors, take_apart
from fxpipe.capture.handed import Snapshot, Where
from fxpipe.ir.capture import Inside, Span

Lookup = Callable[[Any], "torch.fx.Node | None"]


@dataclass
class Frame:
    """A module call in progress.

    Attributes:
        path: of the module.
        call: how often it was called before.
        module: the module; None for the call of a module that is not part of the model.
        via: ``"call"``, ``"forward"`` or ``"plain"`` (see `fxpipe.ir.capture`).
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


def calls_modules(value: Any) -> bool:
    """Whether a function that a module is handed calls others: a partial, a method, a closure."""
    if isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
        return any(isinstance(each, torch.nn.Module) or calls_modules(each) for each in inner)
    if isinstance(getattr(value, "__self__", None), torch.nn.Module):
        return True
    cells = getattr(value, "__closure__", None) or ()
    return any(isinstance(cell_content(cell), torch.nn.Module) for cell in cells)


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

    A call must read nothing but its arguments. What it hands on is its result, what it puts into its
    arguments, and what hooks take of modules inside.
    """
    found: list[Span] = []
    for span in spans:
        assert span is not None
        found.append(span)
    return tuple(_Closing(found, graph).close())


class _Closing:
    """Looks at the spans of a finished recording."""

    def __init__(self, spans: list[Span], graph: torch.fx.Graph) -> None:
        self._spans = spans
        self._nodes = {node.name: node for node in graph.nodes}
        self._made_in: dict[str, list[int]] = {}
        for index, span in enumerate(spans):
            for name in span.outputs:
                self._made_in.setdefault(name, []).append(index)

    def close(self) -> Iterator[Span]:
        """The spans, closed."""
        for index, span in enumerate(self._spans):
            yield self._closed(index, span) if span.fixed is None and span.nodes else span

    def _closed(self, index: int, span: Span) -> Span:
        fixed = self._unseen_input(span)
        inside: dict[str, Inside] = {}
        for name, user in self._leaks(span):
            place = self._inside(index, span, self._nodes[name])
            if place is None:
                fixed = fixed or f"{user} reads {name}, which is not part of its result"
                break
            inside[name] = place
        return replace(span, fixed=fixed, inside=inside)

    def _unseen_input(self, span: Span) -> str | None:
        given: set[str] = set()
        torch.fx.node.map_arg((span.args, dict(span.kwargs)), lambda node: given.add(node.name))
        inside = set(span.nodes)
        for name in span.nodes:
            for read in self._nodes[name].all_input_nodes:
                if read.op != "get_attr" and read.name not in inside and read.name not in given:
                    return f"it reads {read.name}, which is not among its arguments"
        return None

    def _leaks(self, span: Span) -> Iterator[tuple[str, str]]:
        """What is read outside and the call does not hand out, with a reader."""
        inside = set(span.nodes)
        for name in span.nodes:
            if name in span.outputs or name in span.changed:
                continue
            users = (user.name for user in self._nodes[name].users if user.name not in inside)
            reader = next(users, None)
            if reader is not None:
                yield name, reader

    def _inside(self, index: int, span: Span, node: torch.fx.Node) -> Inside | None:
        """The module inside that returned a value; None if none did."""
        layer, steps = _result_of_layer(node)
        if layer is not None and layer.name in span.nodes and layer.meta["via"] != "forward":
            before = [n for n in span.nodes if self._is_call_of(n, layer)]
            return _within(span, str(layer.target), before.index(layer.name), steps)
        for at in self._made_in.get(node.name, ()):
            inner = self._spans[at]
            if at > index and node.name in inner.nodes and inner.via != "forward":
                calls = [n for n in self._descendants(index) if self._spans[n].path == inner.path]
                return _within(span, inner.path, calls.index(at), inner.outputs[node.name])
        return None

    def _is_call_of(self, name: str, layer: torch.fx.Node) -> bool:
        node = self._nodes[name]
        return bool(node.op == "call_module" and node.target == layer.target)

    def _descendants(self, index: int) -> Iterator[int]:
        inside = {index}
        for at, span in enumerate(self._spans):
            if span.parent in inside:
                inside.add(at)
                yield at


def _within(span: Span, path: str, call: int, steps: tuple[str | int, ...]) -> Inside | None:
    prefix = f"{span.path}." if span.path else ""
    if not path.startswith(prefix) or path == span.path:
        return None
    return Inside(path.removeprefix(prefix), call, steps)


def _result_of_layer(node: torch.fx.Node) -> tuple[torch.fx.Node | None, tuple[str | int, ...]]:
    """The call of a layer that a value is part of the result of, and the steps to it."""
    steps: list[str | int] = []
    while node.target in (getattr, operator.getitem) and node.op == "call_function":
        holder, step = node.args[:2]
        if not isinstance(holder, torch.fx.Node) or not isinstance(step, str | int):
            return None, ()
        steps.insert(0, f".{step}" if node.target is getattr else step)
        node = holder
    return (node, tuple(steps)) if node.op == "call_module" else (None, ())
