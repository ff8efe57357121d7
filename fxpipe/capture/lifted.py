"""Functions taken out of the values around them, so that a graph can hand those to them.

    scale = x.abs().mean()                     lifted, held = lift(lambda row: row * scale)
    vmap(lambda row: row * scale)(x)           vmap(lifted.around(held))(x)

What a function has taken from around it is another tensor in every run. A graph holds the function
alone, and its values are arguments of a node.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from fxpipe.capture.containers import PLAIN, cell_content

_FIXED: Final = (types.BuiltinFunctionType, types.MethodDescriptorType, types.ModuleType, type)
"""What is the same in every run."""
_DEPTH: Final = 4
"""Functions in functions that are taken apart."""


@dataclass(frozen=True, eq=False)
class Lifted:
    """A function without the values in it: their places are counted, other functions kept lifted."""

    function: Any
    cells: tuple[int | Lifted, ...] = ()

    def around(self, held: Sequence[Any]) -> Any:
        """The function with values in its places."""
        if not self.cells:
            return self.function
        function = self.function
        assert isinstance(function, types.FunctionType)
        contents = (held[c] if isinstance(c, int) else c.around(held) for c in self.cells)
        made = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(map(types.CellType, contents)),
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made


@dataclass(frozen=True, eq=False)
class LiftedCall:
    """A call of `implementation`, whose first argument is a function."""

    implementation: Callable[..., Any]
    lifted: Lifted

    def __call__(self, held: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """The result of the call with the function around `held`."""
        return self.implementation(self.lifted.around(held), *args, **kwargs)


def lift(function: Callable[..., Any]) -> tuple[Lifted, list[Any]] | None:
    """A function, lifted, and the values that are in it; None if there is anything else.

    Tensors and plain values can be lifted, but modules cannot, nor objects: what functions do to them,
    no graph shows.
    """
    held: list[Any] = []
    lifted = _lift(function, held, 0)
    return None if lifted is None else (lifted, held)


def callables(*arguments: Any) -> list[Callable[..., Any]]:
    """The functions among arguments."""
    return [leaf for leaf in tree_leaves(arguments) if callable(leaf)]


def is_alone(function: Callable[..., Any]) -> bool:
    """Whether there is nothing in a function that could be something else in another run."""
    found = lift(function)
    return found is not None and not found[1]


def _lift(function: Any, held: list[Any], depth: int) -> Lifted | None:
    if isinstance(function, _FIXED):
        return Lifted(function)
    if not isinstance(function, types.FunctionType) or depth > _DEPTH:
        return None
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(map(_is_plain, defaults)):
        return None
    cells: list[int | Lifted] = []
    for content in map(cell_content, function.__closure__ or ()):
        if isinstance(content, torch.Tensor) or _is_plain(content):
            held.append(content)
            cells.append(len(held) - 1)
            continue
        inner = _lift(content, held, depth + 1)
        if inner is None:
            return None
        cells.append(inner)
    return Lifted(function, tuple(cells))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in PLAIN
