"""What module calls are handed, as fx arguments; objects as something to build anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from fxpipe.capture.containers import take_apart
from fxpipe.capture.handed import Snapshot, Where
from fxpipe.capture.spans import Frame, outputs_of
from fxpipe.capture.values import Values
from fxpipe.held import Held
from fxpipe.ir.capture import Rebuilt, Span


@dataclass(frozen=True, slots=True)
class _Object:
    """An argument of a span that has to be built anew, with the states it went through."""

    span: int
    where: Where
    snapshot: Snapshot
    number: int
    before: int
    after: int


@dataclass(slots=True)
class _State:
    """What an object held when it was last looked at."""

    number: int
    version: int
    snapshot: Snapshot


class Arguments:
    """The arguments of the module calls of one recording."""

    def __init__(self, values: Values, model: nn.Module) -> None:
        self._values = values
        self._model = model
        self._states: dict[int, _State] = {}
        self._objects: list[_Object] = []
        self._stateful: set[type[Any]] = set()
        self._versions = 0

    def open(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a call is handed, before it runs. No node that computes is written for it."""
        seen: set[int] = set()
        frame.args = [self._argument(frame, at, value, seen) for at, value in enumerate(args)]
        frame.kwargs = {
            name: self._argument(frame, name, value, seen) for name, value in kwargs.items()
        }

    def _argument(self, frame: Frame, where: Where, value: Any, seen: set[int]) -> Any:
        if take_apart(value) is None or self._values.known(value) is not None:
            return self._values.argument(value)
        snapshot = Snapshot(value, self._values.node_if_any, seen)
        frame.handed[where] = (value, snapshot, self._version(value, snapshot))
        return self._values.argument(value) if snapshot.is_plain else None

    def close(self, frame: Frame, nodes: set[str]) -> None:
        """Note what became of the arguments of a call that made `nodes`."""
        for where, (value, snapshot, before) in frame.handed.items():
            now = Snapshot(value, self._values.known, set())
            has_tensors = snapshot.holds_tensors or now.holds_tensors
            changed = snapshot.changed
            if (
                not snapshot.is_plain
                or isinstance(changed, list | dict)
                or (changed and has_tensors)
            ):
                after = self._version(value, now)
                number = self._states[id(value)].number
                self._objects.append(_Object(frame.index, where, snapshot, number, before, after))
                for name, steps in outputs_of(value, self._values.known).items():
                    if name in nodes:
                        frame.changed.setdefault(name, (where, *steps))

    @cached_property
    def _held_by_model(self) -> Held:
        modules = self._model.modules()
        return Held(value for module in modules for value in module.__dict__.values())

    def _is_itself(self, snapshot: Snapshot) -> bool:
        """Whether calls are handed the very object: one without tensors that is the model's, or stays.

        The model's own is the user's: what calls do to it (a count of theirs) is meant to last.
        """
        if snapshot.holds_tensors or snapshot.holds_any(self._stateful):
            return False
        return snapshot.changed is None or snapshot.value in self._held_by_model

    def _version(self, value: Any, snapshot: Snapshot) -> int:
        """A number for what an object holds; the same one if it was looked at and has not changed."""
        self._stateful |= snapshot.stateful
        known = self._states.get(id(value))
        if known is not None and known.snapshot.same_as(snapshot):
            return known.version
        self._versions += 1
        number = len(self._states) if known is None else known.number
        self._states[id(value)] = _State(number, self._versions, snapshot)
        return self._versions

    def settle(self, spans: list[Span | None]) -> None:
        """After the run: put into the spans how their objects are built, or why they cannot be."""
        for found in self._objects:
            span = spans[found.span]
            assert span is not None
            if span.fixed is not None:
                continue
            if self._is_itself(found.snapshot):
                value = found.snapshot.value
                spans[found.span] = _with(span, found.where, self._values.argument(value))
                continue
            try:
                maker, leaves = found.snapshot.rebuilt(self._stateful)
            except ValueError as reason:
                spans[found.span] = replace(span, fixed=str(reason))
                continue
            argument = Rebuilt(maker, leaves, found.number, found.before, found.after)
            spans[found.span] = _with(span, found.where, argument)


def _with(span: Span, where: Where, argument: Any) -> Span:
    if isinstance(where, int):
        return replace(span, args=(*span.args[:where], argument, *span.args[where + 1 :]))
    return replace(span, kwargs={**span.kwargs, where: argument})
