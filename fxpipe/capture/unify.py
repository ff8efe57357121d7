"""Recordings of different sizes made into one graph that holds for every size.

Numbers that differ become functions of the sizes; anything else that differs is a reason for the
module around it to stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from fxpipe import ops
from fxpipe.capture.axes import Sizes
from fxpipe.capture.fallback import DecidesOtherwiseError, KeepWholeError
from fxpipe.capture.formulas import fit
from fxpipe.capture.naming import operation
from fxpipe.capture.record import Recording
from fxpipe.capture.remedies import GENERATOR, POINTER, ROWS
from fxpipe.capture.size_nodes import SizeNodes
from fxpipe.ir.capture import Span


def unify(first: Recording, others: Sequence[Recording], sizes: Sizes) -> None:
    """Make the first recording hold for every size, by comparing it with others.

    Args:
        sizes: of all the recordings, the first one's first.

    Raises:
        KeepWholeError: if they differ in more than numbers that follow the sizes.
    """
    _Comparison(first, others, sizes).run()


def confirm(first: Recording, other: Recording, sizes: Sizes) -> None:
    """Check a unified recording against one more.

    Args:
        sizes: of the two recordings.

    Raises:
        KeepWholeError: if a number does not follow the sizes as it seemed.
    """
    Confirmation(first, (other,), sizes).run()


def compare_data(first: Recording, other: Recording, sizes: Sizes) -> None:
    """Check a unified recording against one of the same sizes with other data in it.

    Raises:
        KeepWholeError: if a number depends on the data: one that a module kept whole has returned, or
            the size of what it has returned.
    """
    _DataComparison(first, (other,), sizes).run()


def is_certain(recording: Recording) -> bool:
    """Whether two recordings were enough to know how every number follows the batch size."""
    return all(formula.is_certain for formula in recording.formulas.values())


class _Comparison:
    def __init__(self, first: Recording, others: Sequence[Recording], sizes: Sizes) -> None:
        self._first, self._others = first, tuple(others)
        self._sizes = sizes
        self._same: list[dict[torch.fx.Node, torch.fx.Node]] = [{} for _ in others]
        self._numbers = SizeNodes(first, sizes)
        self._node: torch.fx.Node | None = None

    def run(self) -> None:
        ours, theirs = self._nodes(), [self._their_nodes(other) for other in self._others]
        for node, *others in zip(ours, *theirs, strict=False):
            self._node = node
            self._compare(node, others)
        for at, nodes in enumerate(theirs):
            if len(nodes) != len(ours):
                raise self._differ("it takes another number of steps", at)
            if len(self._others[at].spans) != len(self._first.spans):
                raise self._differ("it calls another number of modules", at)
        self._compare_spans()

    def _compare_spans(self) -> None:
        spans = zip(self._first.spans, *(other.spans for other in self._others), strict=True)
        self._first.spans = tuple(self._span(span, others) for span, *others in spans)

    def _nodes(self) -> list[torch.fx.Node]:
        return list(self._first.graph.nodes)

    def _their_nodes(self, other: Recording) -> list[torch.fx.Node]:
        return list(other.graph.nodes)

    def _compare(self, node: torch.fx.Node, others: Sequence[torch.fx.Node]) -> None:
        for at, other in enumerate(others):
            if (node.op, node.target) != (other.op, other.target):
                self._node = self._astray(node, other, at)
                raise self._differ("it takes other steps", at)
            if node.op != "call_module" and node.meta.get("draws") != other.meta.get("draws"):
                raise self._differ("it draws another number of random numbers", at)
            self._same[at][other] = node
        if node.op == "get_attr":
            self._constant(str(node.target))
        elif node.op != "placeholder":
            node.args = self._value(node.args, [other.args for other in others])
            node.kwargs = self._value(dict(node.kwargs), [dict(other.kwargs) for other in others])

    def _astray(self, node: torch.fx.Node, other: torch.fx.Node, at: int) -> torch.fx.Node:
        """Which of two nodes, where two recordings part, is in the module that takes a step more.

        One of them is out of that module already: the other one is inside of it, or in a module
        called earlier.
        """
        ours, theirs = _Calls(self._first.spans), _Calls(self._others[at].spans)
        one, two = ours.of(node), theirs.of(other)
        if one == two or two not in ours or one not in theirs:
            return node
        if ours.is_inside(one, two):
            return node
        return other if ours.is_inside(two, one) or ours.index(two) < ours.index(one) else node

    def _constant(self, name: str) -> None:
        one = self._first.constants.get(name)
        if isinstance(one, torch.Generator):
            self._generator(one, name)
        if not isinstance(one, torch.Tensor):
            return
        for at, other in enumerate(self._others):
            two = other.constants.get(name)
            if not isinstance(two, torch.Tensor) or one.shape != two.shape:
                raise self._differ("it uses a constant tensor of another shape", at)
            if one is not two and not torch.equal(one, two):
                raise self._differ("it uses a constant tensor with other values", at)

    def _generator(self, one: torch.Generator, name: str) -> None:
        """Keep a module whole that makes a generator: there would be one for all micro-batches.

        Raises:
            KeepWholeError: if every recording has another one.
        """
        if any(other.constants.get(name) is not one for other in self._others):
            assert self._node is not None
            meta = next(iter(self._node.users), self._node).meta
            raise KeepWholeError(
                "it makes a random generator, which would begin anew in every run",
                meta.get("path", ""),
                meta.get("source", ""),
                "Generator",
                remedy=GENERATOR,
            )

    def _span(self, span: Span, others: Sequence[Span]) -> Span:
        if span.fixed is not None:
            return span
        try:
            args = self._value(span.args, [other.args for other in others])
            kwargs = self._value(dict(span.kwargs), [dict(other.kwargs) for other in others])
        except KeepWholeError as reason:
            return replace(span, fixed=reason.reason)
        return replace(span, args=args, kwargs=kwargs)

    def _value(self, one: Any, others: Sequence[Any]) -> Any:
        if isinstance(one, torch.fx.Node):
            for at, two in enumerate(others):
                if not isinstance(two, torch.fx.Node) or self._same[at].get(two) is not one:
                    raise self._differ("values flow otherwise", at)
            return one
        for at, two in enumerate(others):
            if type(one) is not type(two):
                raise self._differ(f"{one!r} becomes {two!r}", at)
        match one:
            case tuple() | list():
                return self._sequence(one, others)
            case Mapping():
                return self._mapping(one, others)
            case slice():
                bounds = [(each.start, each.stop, each.step) for each in (one, *others)]
                return slice(*self._sequence(bounds[0], bounds[1:]))
            case _:
                return self._leaf(one, others)

    def _mapping(self, one: Any, others: Sequence[Any]) -> Any:
        for at, two in enumerate(others):
            if list(one) != list(two):
                raise self._differ("a dict has other keys", at)
        return {key: self._value(one[key], [two[key] for two in others]) for key in one}

    def _sequence(self, one: Any, others: Sequence[Any]) -> Any:
        for at, two in enumerate(others):
            if len(one) != len(two):
                raise self._differ(f"{len(one)} items become {len(two)}", at)
        items = [self._value(item, rest) for item, *rest in zip(one, *others, strict=True)]
        if hasattr(one, "_make"):
            return one._make(items)
        return tuple(items) if isinstance(one, tuple) else items

    def _leaf(self, one: Any, others: Sequence[Any]) -> Any:
        if all(_is_same(one, two) for two in others):
            return one
        return self._follow(one, others)

    # -- numbers that follow the sizes -----------------------------------------------------------------

    def _follow(self, one: Any, others: Sequence[Any]) -> torch.fx.Node:
        """The node that computes a number from the sizes; one for each formula."""
        at = next(at for at, two in enumerate(others) if not _is_same(one, two))
        formula = fit(self._sizes.points, (one, *others))
        if formula is None or (self._decides and self._has_fewer_rows(at)):
            raise self._differ(f"{one!r} becomes {others[at]!r}", at)
        return self._numbers.node(formula)

    # -- what differs ----------------------------------------------------------------------------------

    @property
    def _decides(self) -> bool:
        return self._node is not None and self._node.target is ops.check_value

    def _has_fewer_rows(self, at: int) -> bool:
        """Whether a recording is of some of the rows: what these decide tells nothing of all."""
        base, point = self._sizes.points[0], self._sizes.points[at + 1]
        sizes = zip(self._sizes.axes, base, point, strict=True)
        return any(axis.is_batch and size < full for axis, full, size in sizes)

    def _differ(self, what: str, at: int) -> KeepWholeError:
        node = self._node
        meta = {} if node is None else node.meta
        return (DecidesOtherwiseError if self._decides else KeepWholeError)(
            f"{self._what_changed(at)}, {what}",
            meta.get("path", ""),
            meta.get("source", ""),
            "" if node is None else operation(node),
            remedy=f"{ROWS}; or {POINTER}" if self._reads_numbers() else ROWS,
        )

    def _reads_numbers(self) -> bool:
        """Whether Python takes numbers out of tensors, and goes on with them."""
        checks = (n for n in self._first.graph.nodes if n.target is ops.check_value)
        return any(type(check.args[1]) is not bool for check in checks)

    def _what_changed(self, at: int) -> str:
        return self._sizes.difference(at + 1)


class _Calls:
    """The module calls of a recording by path and number."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._indices = {(span.path, span.call): at for at, span in enumerate(spans)}

    def __contains__(self, call: tuple[str, int]) -> bool:
        return call in self._indices

    def of(self, node: torch.fx.Node) -> tuple[str, int]:
        """The innermost call around a node."""
        return node.meta.get("path", ""), node.meta.get("call", 0)

    def index(self, call: tuple[str, int]) -> int:
        """The position of a call among those of the recording, in order of their start."""
        return self._indices[call]

    def is_inside(self, inner: tuple[str, int], outer: tuple[str, int]) -> bool:
        """Whether one call was made during another."""
        at: int | None = self._indices[inner]
        while at is not None and at != self._indices[outer]:
            at = self._spans[at].parent
        return at is not None


class Confirmation(_Comparison):
    """A comparison in which numbers that follow the sizes are known."""

    def _nodes(self) -> list[torch.fx.Node]:
        return [node for node in self._first.graph.nodes if node not in self._first.formulas]

    def _value(self, one: Any, others: Sequence[Any]) -> Any:
        if isinstance(one, torch.fx.Node) and one in self._first.formulas:
            for at, two in enumerate(others):
                if self._first.formulas[one](self._sizes.points[at + 1]) != two:
                    raise self._differ(f"a number becomes {two!r}", at)
            return one
        return super()._value(one, others)

    def _follow(self, one: Any, others: Sequence[Any]) -> torch.fx.Node:
        at = next(at for at, two in enumerate(others) if not _is_same(one, two))
        raise self._differ(f"{one!r} becomes {others[at]!r}", at)


class _DataComparison(Confirmation):
    """A comparison of recordings that differ in their data alone."""

    def _what_changed(self, at: int) -> str:
        return "with other data in its rows"


def _is_same(one: Any, two: Any) -> bool:
    return bool(one == two or (one != one and two != two))
