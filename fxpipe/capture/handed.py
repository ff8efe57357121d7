"""Objects that a module call is handed and may change: a cache, a list of hidden states.

    cache ── before ──▶ call ──▶ after          what it holds is noted before and after each call

The call can be made again on an object built anew from what it held before; what the call put into it
is found there afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
import torch.fx

from fxpipe.capture.containers import PLAIN, Parts, Shape, take_apart
from fxpipe.capture.fallback import FallbackError
from fxpipe.capture.signature import Branch, Layout, Tree

Where: TypeAlias = int | str
"""An argument: its position, or its keyword."""

_IMMUTABLE = (Shape.TUPLE, Shape.TUPLE_SUBCLASS)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value inside; `argument` is its fx argument, None for what is kept as it is."""

    value: Any
    argument: Any = None

    @property
    def holds_tensors(self) -> bool:
        return isinstance(self.value, torch.Tensor)


@dataclass(frozen=True, slots=True)
class _Inner:
    """A container inside, with its children as they were."""

    value: Any
    parts: Parts
    children: tuple[Any, ...]
    held: tuple[_Held, ...]
    holds_tensors: bool

    @property
    def is_changed(self) -> bool:
        """Whether it holds other children now."""
        apart = take_apart(self.value)
        return apart is None or apart[0] != self.parts or not _alike(apart[1], self.children)


_Held: TypeAlias = "_Leaf | _Inner"


class Snapshot:
    """What an argument held at one moment.

    Args:
        value: the argument.
        node: gives the node of a tensor, or of an object that one node made; None if there is none.
        seen: ids of the mutable containers met so far in the call's other arguments; it grows.

    Attributes:
        value: the argument.
        problem: why it cannot be built anew; None if it can.
        mutable: ids of the mutable containers inside.
        tensors: the tensors inside with their nodes.
    """

    def __init__(
        self, value: Any, node: Callable[[Any], torch.fx.Node | None], seen: set[int]
    ) -> None:
        self.value = value
        self.problem: str | None = None
        self._open: set[int] = set()
        self._node = node
        self._seen = seen
        self.tensors: list[tuple[torch.Tensor, torch.fx.Node | None]] = []
        self._inner: list[_Inner] = []
        self._held = self._take(value)
        self.mutable = {id(i.value) for i in self._inner if i.parts.shape not in _IMMUTABLE}

    def _take(self, value: Any) -> _Held:
        apart = take_apart(value)
        node = self._node_of(value) if apart or isinstance(value, torch.Tensor) else None
        if node is not None or apart is None:
            if isinstance(value, torch.Tensor):
                self.tensors.append((value, node))
            follows = type(value) in (int, float, torch.device)
            return _Leaf(value, value if follows else node)
        parts, children = apart
        if id(value) in self._open:
            self._refuse(f"it is handed a {type(value).__name__} that holds itself")
            return _Leaf(value)
        if parts.shape not in _IMMUTABLE:
            if id(value) in self._seen:
                self._refuse(f"it is handed a {type(value).__name__} in two places at once")
            self._seen.add(id(value))
        self._open.add(id(value))
        held = tuple(map(self._take, children))
        self._open.discard(id(value))
        has = any(inner.holds_tensors for inner in held)
        self._inner.append(_Inner(value, parts, tuple(children), held, has))
        return self._inner[-1]

    def _node_of(self, value: Any) -> torch.fx.Node | None:
        try:
            return self._node(value)
        except FallbackError as error:
            self._refuse(error.reason)
            return None

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem

    @property
    def is_plain(self) -> bool:
        """Whether it is made of lists, tuples and dicts alone."""
        return all(inner.parts.is_plain for inner in self._inner)

    @property
    def holds_tensors(self) -> bool:
        """Whether there is a tensor inside."""
        return self._held.holds_tensors

    @property
    def changed(self) -> Any:
        """The first container in it that holds other things now; None if there is none."""
        return next((inner.value for inner in self._inner if inner.is_changed), None)

    @property
    def stateful(self) -> set[type[Any]]:
        """Classes of the objects inside that hold tensors."""
        return {inner.parts.cls for inner in self._inner if inner.holds_tensors}

    def holds_any(self, classes: set[type[Any]]) -> bool:
        """Whether an object of one of the classes is inside."""
        return any(inner.parts.cls in classes for inner in self._inner)

    @cached_property
    def nodes(self) -> dict[str, tuple[str | int, ...]]:
        """Name of every node whose value is inside → the steps that lead to it."""
        return dict(_nodes(self._held, ()))

    @property
    def classes(self) -> set[type[Any]]:
        """Classes of the containers inside."""
        return {inner.parts.cls for inner in self._inner}

    def rebuilt(self, stateful: set[type[Any]]) -> tuple[Maker, tuple[Any, ...]]:
        """What builds the object as it was, and the fx arguments for that.

        An object inside that holds no tensors, and that nobody has changed since, is used itself, unless
        its class is among the `stateful` ones: classes of objects that held tensors at some time.

        """
        builder = _Builder(stateful)
        tree = builder.build(self._held)
        return Maker(tree, tuple(builder.constants)), tuple(builder.arguments)


class _Builder:
    """Takes a snapshot apart into a layout, arguments and constants."""

    def __init__(self, stateful: set[type[Any]]) -> None:
        self._stateful = stateful
        self.arguments: list[Any] = []
        self.constants: list[Any] = []

    def build(self, held: _Held) -> Tree:
        if isinstance(held, _Leaf):
            if held.argument is None:
                return self._constant(held.value)
            self.arguments.append(held.argument)
            return len(self.arguments) - 1
        if self._is_bystander(held):
            return self._constant(held.value)
        return Branch(held.parts, tuple(map(self.build, held.held)))

    def _constant(self, value: Any) -> int:
        self.constants.append(value)
        return -len(self.constants)

    def _is_bystander(self, inner: _Inner) -> bool:
        if inner.parts.shape is not Shape.OBJECT or inner.holds_tensors:
            return False
        return not any(
            each.is_changed or each.parts.cls in self._stateful for each in _containers(inner)
        )


@dataclass(frozen=True, eq=False)
class Maker:
    """Builds an object anew: ``maker(*leaves)``. Negative leaves of the tree count constants."""

    tree: Tree
    constants: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The object's class."""
        return "value" if isinstance(self.tree, int) else self.tree.parts.cls.__name__

    def __call__(self, *leaves: Any) -> Any:
        """The object around `leaves`."""
        return Layout(self.tree).unflatten([*leaves, *reversed(self.constants)])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Maker)
            and self.tree == other.tree
            and _alike(self.constants, other.constants)
        )

    def __hash__(self) -> int:
        return hash(self.name)


def _nodes(
    held: _Held, steps: tuple[str | int, ...]
) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    if isinstance(held, _Leaf):
        if isinstance(held.argument, torch.fx.Node):
            yield held.argument.name, steps
        return
    for step, inner in zip(held.parts.steps(), held.held, strict=True):
        if isinstance(step, str | int):
            yield from _nodes(inner, (*steps, step))


def _containers(held: _Held) -> Iterator[_Inner]:
    if isinstance(held, _Inner):
        yield held
        for inner in held.held:
            yield from _containers(inner)


def _alike(ones: Any, others: Any) -> bool:
    return len(ones) == len(others) and all(map(_is_same, ones, others))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in PLAIN and bool(one == other))
