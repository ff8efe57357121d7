"""Arguments and results taken apart into leaves, and put together again from other leaves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fxpipe.capture.containers import Parts, Shape, holds_tensors, take_apart
from fxpipe.capture.naming import safe
from fxpipe.errors import CaptureError


@dataclass(frozen=True, slots=True)
class Branch:
    """A container with its children: leaves by index, or branches again."""

    parts: Parts
    children: tuple[Tree, ...]


Tree = int | Branch


@dataclass(frozen=True, slots=True)
class Layout:
    """A value without its leaves."""

    tree: Tree

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value around other leaves; every container is new."""
        return _build(self.tree, leaves)

    def names(self) -> list[str]:
        """For every leaf the steps that lead to it, joined by underscores."""
        found: dict[int, str] = {}
        _name(self.tree, "", found)
        return [found[index] for index in sorted(found)]


def flatten(value: Any, *, shared: bool = False) -> tuple[list[Any], Layout]:
    """The leaves of a value, in order, and the layout that holds them.

    Lists, tuples, dicts, their subclasses and objects that hold tensors are taken apart. `shared`: a
    tensor that occurs twice is one leaf (in a result it is then one object in both places; arguments
    that happen to be the same tensor may be two tensors in the next call).

    Raises:
        CaptureError: if a container contains itself, or there is an iterator.
    """
    leaves: list[Any] = []
    return leaves, Layout(_take(value, leaves, {} if shared else None, []))


def _take(value: Any, leaves: list[Any], shared: dict[int, int] | None, above: list[int]) -> Tree:
    if isinstance(value, torch.Tensor) and shared is not None:
        if id(value) not in shared:
            shared[id(value)] = len(leaves)
            leaves.append(value)
        return shared[id(value)]
    apart = take_apart(value)
    if apart is None or (apart[0].shape is Shape.OBJECT and not holds_tensors(value)):
        if isinstance(value, Iterator):
            raise CaptureError(
                f"a {type(value).__name__} is among the arguments or results: what it gives can be read "
                "once only, and not by each recording and micro-batch. Use a list or a tuple"
            )
        leaves.append(value)
        return len(leaves) - 1
    if id(value) in above:
        raise CaptureError(f"a {type(value).__name__} among the arguments or results holds itself")
    parts, children = apart
    above.append(id(value))
    taken = tuple(_take(inner, leaves, shared, above) for inner in children)
    above.pop()
    return Branch(parts, taken)


def _build(tree: Tree, leaves: Sequence[Any]) -> Any:
    if isinstance(tree, int):
        return leaves[tree]
    return tree.parts.make([_build(inner, leaves) for inner in tree.children])


def _name(tree: Tree, name: str, found: dict[int, str]) -> None:
    if isinstance(tree, int):
        found.setdefault(tree, name)
        return
    for step, inner in zip(tree.parts.steps(), tree.children, strict=True):
        word = str(step).strip(".")
        _name(inner, f"{name}_{word}" if name else word, found)


def argument_names(model: nn.Module, layout: Layout) -> list[str]:
    """A legal, unique name for every leaf of ``(args, kwargs)``: forward's own words for them."""
    positional = positional_names(model)
    seen: dict[str, int] = {}
    names = []
    for steps in layout.names():
        which, _, rest = steps.partition("_")
        if which == "0":
            position, _, inner = rest.partition("_")
            index = int(position)
            word = positional[index] if index < len(positional) else f"arg_{index}"
            rest = f"{word}_{inner}" if inner else word
        name = safe(rest)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name] - 1}")
    return names


def positional_names(model: nn.Module) -> list[str]:
    """The names of the arguments that forward takes by position; those of ``*args`` have none."""
    try:
        signature = inspect.signature(model.forward)
    except (ValueError, TypeError):  # a built-in function may have none
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in signature.parameters.values() if p.kind in kinds]
