"""What the modules of a model hold in plain Python objects, kept and put back."""

from __future__ import annotations

import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from functools import lru_cache
from operator import is_
from typing import Any, Final

import torch
from torch import nn

from fxpipe import generators

_REGISTRIES: Final = frozenset({dict, OrderedDict})
"""What a module registers hooks in: most are empty."""
_MAPPINGS: Final = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES: Final = (list, deque)
_CLOSED: Final = (
    torch.Tensor,
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
)
_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_EMPTY: Final = ()
_DEPTH: Final = 6
"""Containers and objects inside one another that are looked into."""
_LIBRARIES: Final = sys.stdlib_module_names | {"torch", "numpy", "fxpipe"}
"""Packages whose objects are no plain data: locks, files, queues."""


class Held:
    """Containers and plain objects reachable from some values, with what they held at first.

    Dicts, lists, sets and deques are looked into, and so are objects of the user's own classes; not
    modules, functions and classes.

    Attributes:
        tensors: those found on the way, each once.
        generators: of random numbers, found on the way, each once.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.generators: list[Any] = []
        self._contents: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        for value in values:
            if type(value) in _REGISTRIES and not value:
                self._keep_empty(value)
            else:
                self._keep(value, 0)
        self._states = [generators.state(generator) for generator in self.generators]

    def __contains__(self, value: object) -> bool:
        """Whether this very container, object or tensor is among them."""
        return id(value) in self._seen

    def put_back(self) -> None:
        """Every container and object holds the very objects it held at first."""
        for generator, state in zip(self.generators, self._states, strict=True):
            generators.set_state(generator, state)
        for cell, content in self._contents:
            refill(cell, content)

    def _keep_empty(self, cell: Any) -> None:
        if id(cell) not in self._seen:
            self._seen.add(id(cell))
            self._contents.append((cell, _EMPTY))

    def _keep(self, value: Any, depth: int) -> None:
        cls = type(value)
        if cls in _ATOMS or id(value) in self._seen:
            return
        kind = _kind(cls)  # type: ignore[arg-type]
        if kind is _Kind.TENSOR:
            self.tensors.append(value)
        elif kind is _Kind.GENERATOR:
            self.generators.append(value)
        elif kind is _Kind.CLOSED or depth > _DEPTH:
            return
        else:
            self._look_into(value, kind, depth)
            return
        self._seen.add(id(value))

    def _look_into(self, value: Any, kind: _Kind, depth: int) -> None:
        cell: Any = value
        if kind is _Kind.OBJECT:
            cell = getattr(value, "__dict__", None)
            if type(cell) is not dict:
                return
        self._seen.add(id(value))
        content: Any = _EMPTY
        if cell:
            content = dict(cell) if isinstance(cell, dict) else list(cell)
        if kind is not _Kind.TUPLE:
            self._contents.append((cell, content))
        for child in content.values() if isinstance(content, dict) else content:
            self._keep(child, depth + 1)


def generators_in(modules: Iterable[nn.Module], more: Iterable[Any] = ()) -> list[Any]:
    """The generators of random numbers, of any kind, that modules hold, and some more."""
    inner = dict.fromkeys(module for each in modules for module in each.modules())
    values = (value for module in inner for value in vars(module).values())
    return Held([*values, *more]).generators


class _Kind(Enum):
    """What is done with the objects of a class."""

    TENSOR = auto()
    GENERATOR = auto()
    CONTAINER = auto()
    TUPLE = auto()
    """Cannot change, but what is in it can."""
    OBJECT = auto()
    CLOSED = auto()
    """Not looked into."""


@lru_cache(maxsize=4096)
def _kind(cls: type[Any]) -> _Kind:
    if issubclass(cls, torch.Tensor):
        return _Kind.TENSOR
    if issubclass(cls, generators.KINDS):
        return _Kind.GENERATOR
    if cls in _MAPPINGS or cls in _SEQUENCES or cls is set:
        return _Kind.CONTAINER
    if cls is tuple:
        return _Kind.TUPLE
    if issubclass(cls, _CLOSED) or cls.__module__.partition(".")[0] in _LIBRARIES:
        return _Kind.CLOSED
    return _Kind.OBJECT


def is_plain_object(cls: type[Any]) -> bool:
    """Whether objects of a class are the user's own, with attributes that can be looked into."""
    return _kind(cls) is _Kind.OBJECT  # type: ignore[arg-type]


def refill(cell: Any, content: Any) -> None:
    """Give a container its content back; nothing is written if it still has it."""
    if not cell and not content:
        return
    if isinstance(cell, dict):
        if not _holds(cell, content):
            cell.clear()
            cell.update(content)
    elif isinstance(cell, set):
        if len(cell) != len(content) or not all(item in cell for item in content):
            cell.clear()
            cell.update(content)
    elif len(cell) != len(content) or not all(map(is_, cell, content)):
        cell.clear()
        cell.extend(content)


def _holds(cell: Mapping[Any, Any], content: Mapping[Any, Any] | tuple[()]) -> bool:
    if len(cell) != len(content) or not content:
        return len(cell) == len(content)
    return all(map(is_, cell, content)) and all(map(is_, cell.values(), content.values()))
