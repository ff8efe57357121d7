"""Python containers taken apart: one notion of "inside" for arguments, results and spans.

A container is a list, tuple or dict, a subclass of one, or any object whose attributes hold tensors.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict, deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final

import numpy as np
import torch

from fxpipe import ops
from fxpipe.held import slots_of

PLAIN: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(Ellipsis),
)
"""Types whose values stand in a graph as they are."""

_CLOSED: Final = (
    *PLAIN,
    type,
    Enum,
    range,
    slice,
    np.generic,
    np.ndarray,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    torch.nn.Module,
    torch.Generator,
    torch.Size,
)
_ATOMS: Final = frozenset(PLAIN)
_DEPTH: Final = 12
_ENCLOSED_DEPTH: Final = 3
"""Functions in functions that are looked into."""

Step = str | int
"""How to get from a container to a child: an index, a key, or an attribute as ``".name"``."""


class Shape(StrEnum):
    """The kind of a container: what `Parts.make` must call."""

    LIST = "list"
    TUPLE = "tuple"
    DICT = "dict"
    LIST_SUBCLASS = "list subclass"
    TUPLE_SUBCLASS = "tuple subclass"
    DICT_SUBCLASS = "dict subclass"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Parts:
    """A container without its children: `items` positions or keys first, then `names` attributes."""

    shape: Shape
    cls: type[Any]
    items: tuple[Any, ...]
    names: tuple[str, ...] = ()
    factory: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether it is exactly a list, a tuple or a dict."""
        return self.shape in (Shape.LIST, Shape.TUPLE, Shape.DICT)

    def steps(self) -> tuple[Any, ...]:
        """The steps to the children, in order."""
        return (*self.items, *("." + name for name in self.names))

    def make(self, children: Sequence[Any]) -> Any:
        """The container around other children."""
        items, rest = children[: len(self.items)], children[len(self.items) :]
        state = dict(zip(self.names, rest, strict=True))
        match self.shape:
            case Shape.LIST:
                return list(items)
            case Shape.TUPLE:
                return tuple(items)
            case Shape.DICT:
                return dict(zip(self.items, items, strict=True))
            case Shape.TUPLE_SUBCLASS:
                return ops.rebuild_tuple(self.cls, items)
            case Shape.LIST_SUBCLASS:
                return ops.rebuild_list(self.cls, items, state)
            case Shape.DICT_SUBCLASS:
                pairs = dict(zip(self.items, items, strict=True))
                return ops.rebuild_mapping(self.cls, pairs, state, self.factory)
            case Shape.OBJECT:
                return ops.rebuild_object(self.cls, state)


def take_apart(value: Any) -> tuple[Parts, list[Any]] | None:
    """A container's shape and its children; None for tensors, constants and closed objects."""
    cls = type(value)
    if cls in _ATOMS or isinstance(value, torch.Tensor) or isinstance(value, _CLOSED):
        return None
    if isinstance(value, list):
        if cls is list:
            return Parts(Shape.LIST, list, tuple(range(len(value)))), value
        state = attributes(value)
        parts = Parts(Shape.LIST_SUBCLASS, cls, tuple(range(len(value))), tuple(state))
        return parts, [*list.__iter__(value), *state.values()]
    if isinstance(value, tuple):
        shape = Shape.TUPLE if cls is tuple else Shape.TUPLE_SUBCLASS
        return Parts(shape, cls, tuple(range(len(value)))), list(tuple.__iter__(value))
    if isinstance(value, dict):
        return _dict(value, cls)
    state = attributes(value)
    if not state:
        return None
    return Parts(Shape.OBJECT, cls, (), tuple(state)), list(state.values())


def _dict(value: dict[Any, Any], cls: type[Any]) -> tuple[Parts, list[Any]]:
    keys = tuple(dict.keys(value))
    children = [dict.__getitem__(value, key) for key in keys]
    if cls is dict:
        return Parts(Shape.DICT, dict, keys), children
    state = {  # an output class mirrors its items as attributes: those come back with the items
        name: held
        for name, held in attributes(value).items()
        if not (name in value and dict.__getitem__(value, name) is held)
    }
    factory = value.default_factory if isinstance(value, defaultdict) else None
    parts = Parts(Shape.DICT_SUBCLASS, cls, keys, tuple(state), factory)
    return parts, [*children, *state.values()]


def attributes(value: Any) -> dict[str, Any]:
    """What an object holds, in ``__dict__`` and in slots."""
    held = {name: getattr(value, name) for name in slots_of(type(value)) if hasattr(value, name)}
    held.update(getattr(value, "__dict__", {}))
    return held


def child(value: Any, step: Any) -> Any:
    """What is found one step inside a container."""
    if (
        isinstance(step, str)
        and step.startswith(".")
        and not (isinstance(value, dict) and step in value)
    ):
        return getattr(value, step[1:])
    return value[step]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors inside a value, each container visited once."""
    yield from _tensors(value, set(), 0)


def _tensors(value: Any, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, _CLOSED) or id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    apart = take_apart(value)
    if apart is not None:
        for inner in apart[1]:
            yield from _tensors(inner, seen, depth + 1)


def enclosed(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what cannot be taken apart: functions, partials, methods, sets, deques, views."""
    yield from _enclosed(value, 0)


def _enclosed(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if depth > _ENCLOSED_DEPTH:
        return
    for inner in _inside(value):
        yield from tensors(inner)
        yield from _enclosed(inner, depth + 1)


def _inside(value: Any) -> Iterable[Any]:
    match value:
        case functools.partial():
            return (value.func, *value.args, *value.keywords.values())
        case types.MethodType():
            return (value.__self__, value.__func__)
        case types.FunctionType():
            cells = (cell_content(cell) for cell in value.__closure__ or ())
            return (*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        case deque() | set() | frozenset() | KeysView() | ValuesView() | ItemsView():
            return tuple(value)
        case _:
            return ()


def cell_content(cell: types.CellType) -> object:
    """What a function has taken from around it."""
    try:
        return cell.cell_contents
    except ValueError:  # it is empty as yet
        return None


def holds_tensors(value: Any) -> bool:
    """Whether a tensor is anywhere inside a value."""
    return next(tensors(value), None) is not None
