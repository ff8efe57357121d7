"""What the modules that stages write out, and do not call, hold in Python: compared from call to call.

A recording has the Python of these modules in it, as it was: their attributes and their hooks. Tensors,
functions and objects are compared by identity, constants by value, containers and plain objects by what
they hold.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, TypeAlias
from weakref import ref

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from fxpipe.held import is_plain_object

Place: TypeAlias = tuple[str, str]
"""Path of a module, and name of an attribute."""
Entry: TypeAlias = tuple[str, str, Hashable]
"""A place, with something that is equal if the same is there."""

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS: Final = tuple(f"_global{name}" for name in _HOOKS)
_OF_TORCH: Final = frozenset(vars(nn.Module())) | {"_compiled_call_impl"}
"""What torch keeps in every module: seen elsewhere, but for hooks."""
_CONSTANTS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_VALUES: Final = frozenset({torch.device, range})
_MOST: Final = 128
"""Items inside an attribute, and elements of an array, that are compared."""
_DEPTH: Final = 4


class Followed:
    """Tells whether the modules that are written out hold what they held when recorded.

    Args:
        model: whose modules they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._last: dict[Place, Hashable] = {}
        self._frozen: dict[Place, Hashable] = {}

    def entries(self, paths: Sequence[str]) -> tuple[Entry, ...]:
        """What the modules of these paths hold; equal as long as they hold the same."""
        look = _Look()
        self._last = {place: look.at(value) for place, value in self._attributes(paths)}
        followed = {**self._last, **self._frozen}
        return (*((*place, entry) for place, entry in followed.items()), *self._hooks(paths))

    def ran(self, paths: Sequence[str]) -> None:
        """The stages have run since `entries`: what they put anywhere is not followed from now on.

        A hook may keep activations in a module, say. Numbers, flags and strings are always followed.
        """
        look = _Look()
        for place, value in self._attributes(paths):
            before = self._last.get(place)
            if type(value) not in _CONSTANTS and look.at(value) != before:
                self._frozen.setdefault(place, before)

    def _attributes(self, paths: Sequence[str]) -> Iterator[tuple[Place, Any]]:
        for path in paths:
            for name, value in vars(self._model.get_submodule(path)).items():
                if name not in _OF_TORCH:
                    yield (path, name), value

    def _hooks(self, paths: Sequence[str]) -> Iterator[Entry]:
        """Keys of hooks: torch gives each hook one of its own."""
        for path in paths:
            attributes = vars(self._model.get_submodule(path))
            for name in _HOOKS:
                if hooks := attributes.get(name):
                    yield path, name, tuple(hooks)
        for name in _GLOBAL_HOOKS:
            hooks = getattr(torch_module, name)
            if own := tuple(key for key, hook in hooks.items() if not _only_looks(hook)):
                yield "", name, own


def _only_looks(hook: object) -> bool:
    """Whether a hook is ours, or of a tool of torch's that only looks on, like `FlopCounterMode`."""
    return str(getattr(hook, "__module__", "")).startswith(("torch.", "fxpipe."))


class _Same:
    """Equal for the very same object. It keeps none alive that can be referred to weakly."""

    __slots__ = ("_get", "_hash")

    def __init__(self, value: object) -> None:
        self._hash = id(value)
        try:
            self._get: Callable[[], object] = ref(value)
        except TypeError:
            self._get = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._hash != other._hash:
            return False
        mine = self._get()
        return self is other or (mine is not None and mine is other._get())


class _Look:
    """One look at some values; objects that several modules hold are looked into once."""

    def __init__(self) -> None:
        self._known: dict[int, Hashable] = {}
        self._left = 0

    def at(self, value: Any) -> Hashable:
        """Something that is equal if the same is there."""
        if type(value) in _CONSTANTS:
            return _constant(value)
        if id(value) not in self._known:
            self._left = _MOST
            self._known[id(value)] = self._entry(value, 0)
        return self._known[id(value)]

    def _entry(self, value: Any, depth: int) -> Hashable:
        cls = type(value)
        if cls in _CONSTANTS:
            return _constant(value)
        if cls in _VALUES:
            return cls, value
        if cls is types.MethodType:
            return cls, _Same(value.__self__), _Same(value.__func__)
        if issubclass(cls, np.generic):
            return cls, value.tobytes()
        if issubclass(cls, np.ndarray):
            return _Same(value), _values(value)
        kind = _kind(cls)  # type: ignore[arg-type]
        if kind is _Kind.CLOSED or depth >= _DEPTH:
            return _Same(value)
        if kind is _Kind.OBJECT:
            attributes = getattr(value, "__dict__", None)
            inside = self._items(attributes, depth) if type(attributes) is dict else None
            return _Same(value), inside
        found = self._items(value, depth)
        return _Same(value) if found is None else (cls, found)

    def _items(self, held: Collection[Any], depth: int) -> Hashable:
        """What a container holds; None if it is large."""
        self._left -= len(held)
        if self._left < 0:
            return None
        if isinstance(held, Mapping):
            return tuple(
                (self._entry(key, depth + 1), self._entry(held[key], depth + 1)) for key in held
            )
        found = (self._entry(item, depth + 1) for item in held)
        return frozenset(found) if isinstance(held, Set) else tuple(found)


def _constant(value: Any) -> Hashable:
    if isinstance(value, float | complex):
        return type(value), repr(value)  # 0.0 and -0.0 are equal, nan is not
    return type(value), value


def _values(array: Any) -> bytes | None:
    """The elements of a NumPy array, if it is small."""
    is_small = array.size <= _MOST and not array.dtype.hasobject
    return array.tobytes() if is_small else None


class _Kind(Enum):
    """What is done with the objects of a class."""

    CONTAINER = auto()
    """What it holds is compared."""
    OBJECT = auto()
    """So are its attributes, and which object it is."""
    CLOSED = auto()
    """Which object it is is compared alone."""


@lru_cache(maxsize=4096)
def _kind(cls: type[Any]) -> _Kind:
    if issubclass(cls, Enum):
        return _Kind.CLOSED
    if issubclass(cls, tuple | list | set | frozenset | dict | deque):
        return _Kind.CONTAINER
    if issubclass(cls, types.SimpleNamespace) or is_plain_object(cls):
        return _Kind.OBJECT
    return _Kind.CLOSED
