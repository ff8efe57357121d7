"""What the modules of a model hold in plain Python objects, kept and put back."""

from __future__ import annotations

import argparse
import sys
import types
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import lru_cache
from operator import is_
from typing import Any, Final, TypeGuard

import numpy as np
import torch
from torch import nn

from fxpipe import generators

_REGISTRIES: Final = frozenset({dict, OrderedDict})
"""What a module registers hooks in: most are empty."""
_CONTAINERS: Final = (OrderedDict, dict, set, list, deque, bytearray)
"""Subclasses before their bases."""
_RECORDS: Final = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList)
"""Plain objects of libraries that are otherwise not looked into."""
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

    Dicts, lists, sets and deques are looked into, subclasses too, and so are objects of the user's own
    classes, with slots or without, and NumPy's arrays; not modules, functions and classes.

    Attributes:
        tensors: those found on the way, each once.
        origins: for each of them, the position of the value that led to it first.
        generators: of random numbers, found on the way, each once.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.origins: list[int] = []
        self.generators: list[Any] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._origins: list[int] = []
        self._seen: set[int] = set()
        for at, value in enumerate(values):
            if type(value) in _REGISTRIES and not value:
                self._keep_empty(value)
            else:
                self._keep(value, 0)
            self._origins += [at] * (len(self._contents) - len(self._origins))
            self.origins += [at] * (len(self.tensors) - len(self.origins))
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
        for array, copy in self._arrays:
            if array.flags.writeable and array.tobytes() != copy.tobytes():
                np.copyto(array, copy)

    def changed(self) -> Iterator[tuple[int, Any, Any]]:
        """The containers and objects whose plain values are others now.

        Yields:
            The position of the value that led to it first; the container, which for an object is the
            ``dict`` of its attributes, or something with the items of its slots; and what it held.
        """
        for at, (cell, content) in zip(self._origins, self._contents, strict=True):
            if not cell and not content:
                continue
            now = _content(cell)
            before = content or type(now)()
            if _plain(before) != _plain(now):
                yield at, cell, before

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
        elif kind is _Kind.ARRAY:
            self._arrays.append((value, value.copy()))
        elif kind is _Kind.CLOSED or depth > _DEPTH:
            return
        else:
            self._look_into(value, kind, depth)
            return
        self._seen.add(id(value))

    def _look_into(self, value: Any, kind: _Kind, depth: int) -> None:
        self._seen.add(id(value))
        for cell in _cells(value, kind):
            content = _content(cell) if cell else _EMPTY
            if cell is not value or kind is not _Kind.TUPLE:
                self._contents.append((cell, content))
            for child in content.values() if isinstance(content, dict) else content:
                self._keep(child, depth + 1)


class _Slots:
    """The slots of an object as one container."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __len__(self) -> int:
        return len(self.content())

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._value, name, value)

    def content(self) -> dict[str, Any]:
        """What they hold, by name."""
        value = self._value
        return {
            name: getattr(value, name) for name in slots_of(type(value)) if hasattr(value, name)
        }

    def refill(self, content: Mapping[str, Any]) -> None:
        """Give them what they held, in an object of a frozen class too."""
        now = self.content()
        for name in now.keys() - content.keys():
            object.__delattr__(self._value, name)
        for name, held in content.items():
            if name not in now or now[name] is not held:
                object.__setattr__(self._value, name, held)


@lru_cache(maxsize=4096)
def _slots_of(cls: type[Any]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for each in cls.__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            found[f"_{each.__name__.lstrip('_')}{name}" if is_private else name] = None
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def slots_of(cls: type[Any]) -> tuple[str, ...]:
    """Names of the slots of a class and its bases."""
    return _slots_of(cls)  # type: ignore[arg-type]


def _cells(value: Any, kind: _Kind) -> Iterator[Any]:
    """What holds the content of a value: itself, if it is a container; its attributes; its slots."""
    if kind is not _Kind.OBJECT:
        yield value
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        yield attributes
    if kind is _Kind.OBJECT and slots_of(type(value)):
        yield _Slots(value)


def _content(cell: Any) -> Any:
    """A copy of what a container holds."""
    if isinstance(cell, _Slots):
        return cell.content()
    return (
        dict(_base(cell).items(cell))
        if isinstance(cell, dict)
        else list(_base(cell).__iter__(cell))
    )


def numbers_that_changed(cell: Any, before: Any) -> Iterator[tuple[Any, float]]:
    """Keys under which a container holds another number than before, with the difference."""
    now = _content(cell)
    if isinstance(now, dict):
        for key, value in now.items():
            if key in before and _is_number(value) and _is_number(before[key]):
                if value != before[key]:
                    yield key, value - before[key]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _base(cell: Any) -> Any:
    """The class of Python's own that a container is, whose methods the user's class may replace."""
    return next((cls for cls in _CONTAINERS if isinstance(cell, cls)), type(cell))


def _plain(content: Any) -> Any:
    """The numbers and texts in what a container holds, with their keys.

    Tensors do not count, nor do containers, which are looked into themselves.
    """
    if isinstance(content, dict):
        return {id(key): held for key, held in content.items() if _is_plain(held)}
    return [held for held in content if _is_plain(held)]


def _is_plain(value: Any) -> bool:
    return type(value) in _ATOMS or (isinstance(value, tuple) and all(map(_is_plain, value)))


def generators_in(modules: Iterable[nn.Module], more: Iterable[Any] = ()) -> list[Any]:
    """The generators of random numbers, of any kind, that modules hold, and some more."""
    inner = dict.fromkeys(module for each in modules for module in each.modules())
    values = (value for module in inner for value in vars(module).values())
    return Held([*values, *more]).generators


class _Kind(Enum):
    """What is done with the objects of a class."""

    TENSOR = auto()
    GENERATOR = auto()
    ARRAY = auto()
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
    if issubclass(cls, np.ndarray):
        return _Kind.ARRAY
    if issubclass(cls, _CLOSED):
        return _Kind.CLOSED
    if issubclass(cls, _CONTAINERS):
        return _Kind.CONTAINER
    if issubclass(cls, tuple):
        return _Kind.TUPLE
    if issubclass(cls, _RECORDS):
        return _Kind.OBJECT
    return _Kind.CLOSED if cls.__module__.partition(".")[0] in _LIBRARIES else _Kind.OBJECT


def is_plain_object(cls: type[Any]) -> bool:
    """Whether objects of a class are the user's own, with attributes that can be looked into."""
    return _kind(cls) is _Kind.OBJECT  # type: ignore[arg-type]


def refill(cell: Any, content: Any) -> None:
    """Give a container its content back; nothing is written if it still has it."""
    if not cell and not content:
        return
    base = _base(cell)
    if isinstance(cell, _Slots):
        cell.refill(dict(content))
    elif isinstance(cell, dict):
        if not _holds(base, cell, content):
            base.clear(cell)
            base.update(cell, content)
    elif isinstance(cell, set):
        if len(cell) != len(content) or not all(item in cell for item in content):
            base.clear(cell)
            base.update(cell, content)
    elif len(cell) != len(content) or not all(map(is_, base.__iter__(cell), content)):
        base.clear(cell)
        base.extend(cell, content)


def _holds(base: Any, cell: Any, content: Mapping[str, Any] | tuple[()]) -> bool:
    if len(cell) != len(content) or not content:
        return len(cell) == len(content)
    return all(map(is_, base.__iter__(cell), content)) and all(
        map(is_, base.values(cell), content.values())
    )
