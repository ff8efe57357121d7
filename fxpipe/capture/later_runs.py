"""A recording compared with that of a later run, on what the first run has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from fxpipe.capture.axes import Sizes
from fxpipe.capture.fallback import DecidesOtherwiseError, KeepWholeError
from fxpipe.capture.record import Recording
from fxpipe.capture.unify import Confirmation


def compare_runs(
    first: Recording, second: Recording, sizes: Sizes, which: str = "in a second run"
) -> None:
    """Check a unified recording against that of a later run, on what the first one has left.

    A later run may read a table that the first one made of constants, and leave out to make it.

    Args:
        which: the later run, in words.

    Raises:
        KeepWholeError: if the module goes on otherwise than it began.
    """
    try:
        _RunComparison(first, second, sizes, which).run()
    except DecidesOtherwiseError:
        raise
    except KeepWholeError:
        if not first.fixed:
            raise
        _TablesComparison(first, second, sizes, which).run()


class _RunComparison(Confirmation):
    """A comparison of a first run and a later one."""

    def __init__(self, first: Recording, second: Recording, sizes: Sizes, which: str) -> None:
        super().__init__(first, (second,), sizes)
        self._second, self._which = second, which

    def _nodes(self) -> list[torch.fx.Node]:
        return [node for node in super()._nodes() if not _is_idle(node)]

    def _their_nodes(self, other: Recording) -> list[torch.fx.Node]:
        return [node for node in super()._their_nodes(other) if not _is_idle(node)]

    def _what_changed(self, at: int) -> str:
        return self._which


class _TablesComparison(_RunComparison):
    """One that lets the later run read tables of constants which the first run made.

    What is computed of constants alone is compared where something else reads it.
    """

    def _nodes(self) -> list[torch.fx.Node]:
        return [node for node in super()._nodes() if node not in self._first.fixed]

    def _their_nodes(self, other: Recording) -> list[torch.fx.Node]:
        return [node for node in super()._their_nodes(other) if node not in other.fixed]

    def _compare_spans(self) -> None:
        calls = {(span.path, span.call): span for span in self._second.spans}
        self._first.spans = tuple(
            self._span(span, [calls[span.path, span.call]])
            if (span.path, span.call) in calls
            else span
            for span in self._first.spans
        )

    def _value(self, one: Any, others: Sequence[Any]) -> Any:
        two = others[0]
        if isinstance(one, torch.fx.Node) and isinstance(two, torch.fx.Node):
            is_earlier = two.graph is not self._second.graph
            if one in self._first.fixed and (is_earlier or two in self._second.fixed):
                return self._fixed(one, self._second.left.made_by.get(two, two))
        return super()._value(one, others)

    def _fixed(self, one: torch.fx.Node, two: torch.fx.Node) -> torch.fx.Node:
        """Compare what computes two values of constants alone."""
        if self._same[0].get(two) is one:
            return one
        self._same[0][two] = one
        if one.op != two.op or (one.op != "get_attr" and one.target != two.target):
            raise self._differ("it uses another table", 0)
        if one.op == "get_attr":
            if not self._holds_same(str(one.target), str(two.target)):
                raise self._differ("it uses another constant", 0)
        else:
            self._value(one.args, [two.args])
            self._value(dict(one.kwargs), [dict(two.kwargs)])
        return one

    def _holds_same(self, one: str, two: str) -> bool:
        ours, theirs = (
            self._first.constants.get(one, one),
            {**self._second.left.constants, **self._second.constants}.get(two, two),
        )
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
            same = ours.shape == theirs.shape and ours.dtype == theirs.dtype
            return ours is theirs or (same and torch.equal(ours, theirs))
        return bool(ours is theirs or ours == theirs)


def _is_idle(node: torch.fx.Node) -> bool:
    """Whether a node names a tensor that nothing reads: a buffer that a module has made is one."""
    return node.op == "get_attr" and not node.users
