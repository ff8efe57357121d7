"""Two recordings of different batch sizes made into one graph that holds for every size.

Numbers that differ become functions of the batch size; anything else that differs is a reason
for the module around it to stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from fxpipe.capture import remedies
from fxpipe.capture.batch import Batch
from fxpipe.capture.fallback import KeepWholeError
from fxpipe.capture.formulas import IDENTITY, SIZE, Formula, fit
from fxpipe.capture.record import Recording
from fxpipe.ir.capture import Span


def unify(first: Recording, second: Recording, batch: Batch, sizes: tuple[int, int]) -> None:
    """Make the first recording hold for every batch size, by comparing it with the second.

    Args:
        sizes: rows of the two recordings.

    Raises:
        KeepWholeError: if they differ in more than numbers that follow the batch size.
    """
    _Comparison(first, second, batch, sizes).run()


def confirm(first: Recording, third: Recording, batch: Batch, sizes: tuple[int, int]) -> None:
    """Check a unified recording against one more.

    Args:
        sizes: rows of the two recordings.

    Raises:
        KeepWholeError: if a number does not follow the batch size as it seemed.
    """
    _Confirmation(first, third, batch, sizes).run()


def compare_data(first: Recording, other: Recording, batch: Batch, size: int) -> None:
    """Check a unified recording against one of as many rows with other data in them.

    Raises:
        KeepWholeError: if a number depends on the data: one that a module kept whole has returned, or
            the size of what it has returned.
    """
    _DataComparison(first, other, batch, (size, size)).run()


def is_certain(recording: Recording) -> bool:
    """Whether two recordings were enough to know how every number follows the batch size."""
    return all(formula.is_certain for formula in recording.formulas.values())


class _Comparison:
    def __init__(
        self, first: Recording, second: Recording, batch: Batch, sizes: tuple[int, int]
    ) -> None:
        self._first, self._second = first, second
        self._batch = batch
        self._sizes = sizes
        self._same: dict[torch.fx.Node, torch.fx.Node] = {}
        self._helpers: dict[Formula, torch.fx.Node] = {}
        self._node: torch.fx.Node | None = None

    def run(self) -> None:
        ours, theirs = self._nodes(), list(self._second.graph.nodes)
        for node, other in zip(ours, theirs, strict=False):
            self._node = node
            self._compare(node, other)
        if len(ours) != len(theirs):
            raise self._differ("it takes another number of steps")
        pairs = zip(self._first.spans, self._second.spans, strict=True)
        self._first.spans = tuple(self._span(span, other) for span, other in pairs)

    def _nodes(self) -> list[torch.fx.Node]:
        return list(self._first.graph.nodes)

    def _compare(self, node: torch.fx.Node, other: torch.fx.Node) -> None:
        if (node.op, node.target) != (other.op, other.target):
            raise self._differ("it takes other steps")
        if node.op != "call_module" and node.meta.get("draws") != other.meta.get("draws"):
            raise self._differ("it draws another number of random numbers")
        self._same[other] = node
        if node.op == "get_attr":
            self._constant(str(node.target))
        elif node.op != "placeholder":
            node.args = self._value(node.args, other.args)
            node.kwargs = self._value(dict(node.kwargs), dict(other.kwargs))

    def _constant(self, name: str) -> None:
        one, two = self._first.constants.get(name), self._second.constants.get(name)
        if not isinstance(one, torch.Tensor):
            return
        if not isinstance(two, torch.Tensor) or one.shape != two.shape:
            raise self._differ("it uses a constant tensor of another shape")
        if one is not two and not torch.equal(one, two):
            raise self._differ("it uses a constant tensor with other values")

    def _span(self, span: Span, other: Span) -> Span:
        if span.fixed is not None:
            return span
        try:
            args = self._value(span.args, other.args)
            kwargs = self._value(dict(span.kwargs), dict(other.kwargs))
        except KeepWholeError as reason:
            return replace(span, fixed=reason.reason)
        return replace(span, args=args, kwargs=kwargs)

    def _value(self, one: Any, two: Any) -> Any:
        if isinstance(one, torch.fx.Node):
            if not isinstance(two, torch.fx.Node) or self._same.get(two) is not one:
                raise self._differ("values flow otherwise")
            return one
        if type(one) is not type(two):
            raise self._differ(f"{one!r} becomes {two!r}")
        if isinstance(one, tuple | list):
            return self._sequence(one, two)
        if isinstance(one, Mapping):
            if list(one) != list(two):
                raise self._differ("a dict has other keys")
            return {key: self._value(inner, two[key]) for key, inner in one.items()}
        if isinstance(one, slice):
            bounds = ((one.start, two.start), (one.stop, two.stop), (one.step, two.step))
            return slice(*(self._value(a, b) for a, b in bounds))
        return self._leaf(one, two)

    def _sequence(self, one: Any, two: Any) -> Any:
        if len(one) != len(two):
            raise self._differ(f"{len(one)} items become {len(two)}")
        items = [self._value(a, b) for a, b in zip(one, two, strict=True)]
        if hasattr(one, "_make"):
            return one._make(items)
        return tuple(items) if isinstance(one, tuple) else items

    def _leaf(self, one: Any, two: Any) -> Any:
        if one == two or (one != one and two != two):
            return one
        return self._follow(one, two)

    # -- numbers that follow the batch size ----------------------------------------------------------

    def _follow(self, one: Any, two: Any) -> torch.fx.Node:
        """The node that computes a number from the batch size; one for each formula."""
        formula = fit(self._sizes, (one, two))
        if formula is None:
            raise self._differ(f"{one!r} becomes {two!r}")
        return self._size() if formula == IDENTITY else self._helper(formula, one)

    def _helper(self, formula: Formula, value: float) -> torch.fx.Node:
        if formula not in self._helpers:
            size = self._size()
            last = list(self._helpers.values())[-1]
            args = tuple(size if arg is SIZE else arg for arg in formula.args)
            with self._first.graph.inserting_after(last):
                node = self._first.graph.create_node(
                    "call_function", formula.function, args, {}, name="rows"
                )
            self._helpers[formula] = _describe(node, value)
            self._first.formulas[node] = formula
        return self._helpers[formula]

    def _size(self) -> torch.fx.Node:
        if IDENTITY not in self._helpers:
            placeholder, dim = self._source()
            last = [node for node in self._first.graph.nodes if node.op == "placeholder"][-1]
            with self._first.graph.inserting_after(last):
                node = self._first.graph.create_node(
                    "call_method", "size", (placeholder, dim), {}, name="batch_size"
                )
            self._helpers[IDENTITY] = _describe(node, self._sizes[0])
            self._first.formulas[node] = IDENTITY
        return self._helpers[IDENTITY]

    def _source(self) -> tuple[torch.fx.Node, int]:
        for placeholder, dim in zip(self._first.placeholders, self._batch.dims, strict=True):
            if placeholder is not None and dim is not None:
                return placeholder, dim
        raise AssertionError("two recordings differ only if an input has a batch dimension")

    def _differ(self, what: str) -> KeepWholeError:
        node = self._node
        meta = {} if node is None else node.meta
        return KeepWholeError(
            f"{self._what_changed()}, {what}",
            meta.get("path", ""),
            meta.get("source", ""),
            "" if node is None else node.name,
            remedy=remedies.ROWS,
        )

    def _what_changed(self) -> str:
        one, two = self._sizes
        return f"with {two} rows instead of {one}"


class _Confirmation(_Comparison):
    """A comparison in which numbers that follow the batch size are known."""

    def _nodes(self) -> list[torch.fx.Node]:
        return [node for node in self._first.graph.nodes if node not in self._first.formulas]

    def _value(self, one: Any, two: Any) -> Any:
        if isinstance(one, torch.fx.Node) and one in self._first.formulas:
            if self._first.formulas[one](self._sizes[1]) != two:
                raise self._differ(f"a number becomes {two!r}")
            return one
        return super()._value(one, two)

    def _follow(self, one: Any, two: Any) -> torch.fx.Node:
        raise self._differ(f"{one!r} becomes {two!r}")


class _DataComparison(_Confirmation):
    """A comparison of recordings that differ in their data alone."""

    def _what_changed(self) -> str:
        return "with other data in its rows"


def _describe(node: torch.fx.Node, value: float) -> torch.fx.Node:
    node.meta.update(
        path="", call=0, source="", spec=value, storages=(), mutates=(), buffers=(), draws=0, regions=()
    )  # fmt: skip
    return node
