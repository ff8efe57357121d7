"""What the modules of a model hold in plain Python objects, kept and put back."""

from __future__ import annotations

import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn

from fxpipe import generators
from fxpipe.generators import PythonGenerators

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
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes)
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

    def _keep(self, value: Any, depth: int) -> None:
        if type(value) in _ATOMS:
            return
        if isinstance(value, torch.Tensor) and id(value) not in self._seen:
            self._seen.add(id(value))
            self.tensors.append(value)
        if isinstance(value, generators.KINDS) and id(value) not in self._seen:
            self._seen.add(id(value))
            self.generators.append(value)
        inside = _inside(value)
        if inside is None or id(value) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(value))
        cell, children = inside
        if cell is not None:
            self._contents.append((cell, children))
        for child in children.values() if isinstance(children, dict) else children:
            self._keep(child, depth + 1)


def generators_of(modules: Iterable[nn.Module]) -> PythonGenerators:
    """The generators of ``random`` and NumPy, and those of their kinds that modules hold."""
    inner = (module for each in modules for module in each.modules())
    return PythonGenerators(Held(v for m in inner for v in vars(m).values()).generators)


def _inside(value: Any) -> tuple[Any, Any] | None:
    """The cell to put back (None for what cannot change), and what is in it; None: not looked into."""
    cls = type(value)
    if cls in _MAPPINGS:
        return value, dict(value)
    if cls in _SEQUENCES or cls is set:
        return value, list(value)
    if cls is tuple:
        return None, value
    if isinstance(value, _CLOSED) or cls.__module__.partition(".")[0] in _LIBRARIES:
        return None
    state = getattr(value, "__dict__", None)
    return (state, dict(state)) if type(state) is dict else None


def refill(cell: Any, content: Any) -> None:
    """Give a container its content back; nothing is written if it still has it."""
    if isinstance(cell, dict):
        if not _holds(cell, content):
            cell.clear()
            for key, value in content.items():
                cell[key] = value
    elif isinstance(cell, set):
        if len(cell) != len(content) or not all(item in cell for item in content):
            cell.clear()
            cell.update(content)
    elif len(cell) != len(content) or any(a is not b for a, b in zip(cell, content, strict=True)):
        cell.clear()
        cell.extend(content)


def _holds(cell: Mapping[Any, Any], content: Mapping[Any, Any]) -> bool:
    return len(cell) == len(content) and all(
        a is b and cell[a] is content[b] for a, b in zip(cell, content, strict=True)
    )
