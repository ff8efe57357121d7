"""What module calls are handed, as fx arguments; objects as something to build anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from fxpipe.capture.containers import take_apart
from fxpipe.capture.handed import Maker, Snapshot, Where
from fxpipe.capture.spans import Frame
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
        self._buildable: set[type[Any]] = set()
        self._versions = 0

    def open(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a call is handed, before it runs. No node that computes is written for it."""
        seen: set[int] = set()
        frame.args = [self._argument(frame, at, value, seen) for at, value in enumerate(args)]
        frame.kwargs = {
            name: self._argument(frame, name, value, seen) for name, value in kwargs.items()
        }

    def _argument(self, frame: Frame, where: Where, value: Any, seen: set[int]) -> Any:
        if self._values.encloses(value):
            frame.fixed = f"it is handed a {type(value).__name__} that holds tensors"
            return None
        if take_apart(value) is None or self._values.known(value) is not None:
            return self._values.argument(value)
        state = self._look(value, seen)
        frame.handed[where] = (value, state.snapshot, state.version)
        return self._values.argument(value) if state.snapshot.is_plain else None

    def close(self, frame: Frame, nodes: set[str]) -> None:
        """Note what became of the arguments of a call that made `nodes`."""
        for where, (value, snapshot, before) in frame.handed.items():
            changed = snapshot.changed
            now = self._look(value, set())
            has_tensors = snapshot.holds_tensors or now.snapshot.holds_tensors
            if (
                not snapshot.is_plain
                or isinstance(changed, list | dict)
                or (changed and has_tensors)
            ):
                found = _Object(frame.index, where, snapshot, now.number, before, now.version)
                self._objects.append(found)
                for name, steps in now.snapshot.nodes.items():
                    if name in nodes:
                        frame.changed.setdefault(name, (where, *steps))

    def _look(self, value: Any, seen: set[int]) -> _State:
        """What an object holds now: the same state if it was looked at and has not changed."""
        state = self._states.get(id(value))
        if state is not None and state.snapshot.changed is None:
            if seen.isdisjoint(state.snapshot.mutable) and self._is_current(state.snapshot):
                seen |= state.snapshot.mutable
                return state
            return replace(state, snapshot=Snapshot(value, self._values.node_if_any, seen))
        snapshot = Snapshot(value, self._values.node_if_any, seen)
        self._stateful |= snapshot.stateful
        self._versions += 1
        number = len(self._states) if state is None else state.number
        made = _State(number, self._versions, snapshot)
        self._states[id(value)] = made
        return made

    def _is_current(self, snapshot: Snapshot) -> bool:
        """Whether every tensor inside is still the value of the same node: none was written into."""
        if snapshot.problem is not None:
            return False
        return all(self._values.known(t) in (None, node) for t, node in snapshot.tensors)

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
            maker, leaves = found.snapshot.rebuilt(self._stateful)
            problem = found.snapshot.problem or self._problem(found.snapshot, maker, leaves)
            if problem is not None:
                spans[found.span] = replace(span, fixed=problem)
                continue
            argument = Rebuilt(maker, leaves, found.number, found.before, found.after)
            spans[found.span] = _with(span, found.where, argument)

    def _problem(self, snapshot: Snapshot, maker: Maker, leaves: tuple[Any, ...]) -> str | None:
        """Why an object cannot be built; tried once for the classes inside."""
        if not snapshot.classes <= self._buildable:
            try:
                maker(*leaves)
            except Exception as error:
                return f"a {maker.name} cannot be built anew: {error}"
            self._buildable |= snapshot.classes
        return None


def _with(span: Span, where: Where, argument: Any) -> Span:
    if isinstance(where, int):
        return replace(span, args=(*span.args[:where], argument, *span.args[where + 1 :]))
    return replace(span, kwargs={**span.kwargs, where: argument})
