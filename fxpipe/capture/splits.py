"""What the user says on how inputs are cut: rules by name, which go before what is guessed."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fxpipe.capture.batch import Batch, find_batch, rows_along
from fxpipe.capture.naming import safe
from fxpipe.capture.signature import Layout, Tree, argument_names, positional_names
from fxpipe.ir.split import Split, SplitRule

TARGET = "target"
"""The name by which rules speak of a step's target."""


class Splits:
    """Rules for inputs by name; a name stands for all leaves below it, the longest name decides.

    Names are those of `fxpipe.ir.signature.InputLeaf`: the argument's, and the steps that lead to the
    leaf, joined by underscores (``batch``, ``batch_mask``).

    Args:
        model: its forward says what the arguments are called.
        told: name → rule.
    """

    def __init__(self, model: nn.Module, told: Mapping[str, SplitRule]) -> None:
        self._model = model
        self._told = dict(told)
        self._known: dict[Hashable, tuple[SplitRule | None, ...]] = {}
        self._names: dict[Hashable, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def of_call(self, layout: Layout) -> tuple[SplitRule | None, ...]:
        """The rule of every leaf of ``(args, kwargs)``.

        Raises:
            ValueError: if a rule is for no argument of the model.
        """
        if layout not in self._known:
            paths = list(_argument_paths(self._model, layout))
            self._check(paths)
            self._names[layout] = argument_names(self._model, layout)
            self._known[layout] = tuple(self._rule(path) for path in paths)
        return self._known[layout]

    def of_target(self, layout: Layout) -> tuple[SplitRule | None, ...]:
        """The rule of every leaf of a step's target."""
        return tuple(self._rule(list(_prefixes(TARGET, steps))) for steps in _paths(layout))

    def applied(self, batch: Batch | None, leaves: Sequence[Any], layout: Layout) -> Batch | None:
        """The batch of a call with the rules in force; what they leave open stays as it was guessed.

        Raises:
            ValueError: if a rule does not fit its input, or inputs disagree on the number of rows.
        """
        rules = self.of_call(layout)
        if not any(rules):
            return batch
        names = self._names[layout]
        told = [
            split_dim(leaf, rule, name) if isinstance(rule, Split) else None
            for leaf, rule, name in zip(leaves, rules, names, strict=True)
        ]
        sizes = {n: leaf.shape[d] for n, leaf, d in zip(names, leaves, told) if d is not None}  # noqa: B905
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
            raise ValueError(f"the inputs that `split` cuts have different sizes there ({listed})")
        open_leaves = [None if rule else leaf for leaf, rule in zip(leaves, rules, strict=True)]
        if not sizes:
            return _guessed(batch, open_leaves)
        size = next(iter(sizes.values()))
        return Batch(size, tuple(_fill(batch, size, open_leaves, told)))

    def _rule(self, prefixes: Sequence[str]) -> SplitRule | None:
        return next((self._told[p] for p in reversed(prefixes) if p in self._told), None)

    def _check(self, paths: Sequence[Sequence[str]]) -> None:
        """An argument that is not given this time is no mistake, a name that cannot be one is."""
        names, takes_any = _arguments(self._model)
        present = {prefix for path in paths for prefix in path}
        for key in self._told:
            absent = any(key == name or key.startswith(f"{name}_") for name in (*names, TARGET))
            if key not in present and not absent and not takes_any:
                listed = ", ".join(dict.fromkeys((*names, *sorted(present))))
                raise ValueError(f"`split` has a rule for {key!r}, but the inputs are: {listed}")


def split_dim(leaf: Any, rule: Split, name: str) -> int | None:
    """The dimension that a rule names, counted from the first; None for what is no tensor.

    Raises:
        ValueError: if the tensor has no such dimension.
    """
    if not isinstance(leaf, Tensor):
        return None
    if not -leaf.dim() <= rule.dim < leaf.dim():
        raise ValueError(
            f"`split` cuts {name!r} along dimension {rule.dim}, but its shape is "
            f"{tuple(leaf.shape)}: give it a rule of its own (fxpipe.Replicate() keeps it whole)"
        )
    return rule.dim % leaf.dim()


def _guessed(batch: Batch | None, leaves: Sequence[Any]) -> Batch | None:
    """The guess for leaves that no rule is for, without what was guessed of the others."""
    if batch is None:
        return None
    dims = [None if leaf is None else d for leaf, d in zip(leaves, batch.dims, strict=True)]
    if any(dim is not None for dim in dims):
        return Batch(batch.size, tuple(dims))
    return find_batch(leaves)


def _fill(
    batch: Batch | None, size: int, leaves: Sequence[Any], told: Sequence[int | None]
) -> Iterator[int | None]:
    """The dimensions of all leaves, where some are told and the others must have as many rows."""
    given = [dim for dim in told if dim is not None]
    along = max(given, key=given.count)
    for at, (leaf, dim) in enumerate(zip(leaves, told, strict=True)):
        if dim is not None or leaf is None:
            yield dim
        elif batch is not None and batch.size == size:
            yield batch.dims[at]
        else:
            found = rows_along(leaf, along, size)
            yield rows_along(leaf, 0, size) if found is None else found


def _argument_paths(model: nn.Module, layout: Layout) -> Iterator[list[str]]:
    """For every leaf of ``(args, kwargs)`` the names that it goes by, shortest first."""
    positional = positional_names(model)
    unique = argument_names(model, layout)
    for (which, first, *rest), name in zip(_paths(layout), unique, strict=True):
        word = first
        if which == "0":
            at = int(first)
            word = positional[at] if at < len(positional) else f"arg_{at}"
        yield [*_prefixes(word, rest), name]


def _prefixes(word: str, steps: Sequence[str]) -> Iterator[str]:
    yield safe(word)
    for step in steps:
        word = f"{word}_{step}"
        yield safe(word)


def _paths(layout: Layout) -> list[list[str]]:
    """For every leaf the steps that lead to it."""
    found: dict[int, list[str]] = {}
    _walk(layout.tree, [], found)
    return [found[index] for index in sorted(found)]


def _walk(tree: Tree, steps: list[str], found: dict[int, list[str]]) -> None:
    if isinstance(tree, int):
        found.setdefault(tree, steps)
        return
    for step, inner in zip(tree.parts.steps(), tree.children, strict=True):
        _walk(inner, [*steps, str(step).strip(".")], found)


def _arguments(model: nn.Module) -> tuple[list[str], bool]:
    """The names of forward's arguments; and whether it takes any name."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (ValueError, TypeError):  # a built-in function may have none
        return [], True
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p.name for p in parameters if p.kind not in kinds]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return named, takes_any
