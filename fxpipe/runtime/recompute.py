"""Rerunning a forward at backward: which ones, with which buffers.

A rerun draws the same random numbers, since they are keyed, and reads every buffer as the first
forward read it. What it changes is thrown away: a second forward is no second update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import torch
from torch import Tensor

from fxpipe.generators import States


class Recompute(StrEnum):
    """Which micro-batches keep only their inputs, and run forward again at backward."""

    NEVER = "never"
    EXCEPT_LAST = "except_last"
    ALWAYS = "always"

    def reruns(self, micro_batch: int, count: int) -> bool:
        """Whether the forward of a micro-batch, of `count`, is rerun."""
        if self is Recompute.EXCEPT_LAST:
            return micro_batch < count - 1
        return self is Recompute.ALWAYS


_Buffers = MutableMapping[str, Any]
_ABSENT: Final = object()
"""Stands for a buffer that no forward has made yet."""
_REPLACED: Final = object()
"""Stands for a buffer of the user's that a forward has put another object in place of."""


@dataclass(frozen=True)
class Found:
    """What a forward found.

    Attributes:
        changed: the buffers that it changes or makes.
        all: those that it may replace.
        random: the states of generators without keys, if the forward may draw from some and runs again.
    """

    changed: Sequence[Any]
    all: Sequence[Mapping[str, Any]]
    random: States | None = None


class ChangedBuffers:
    """The buffers that a stage's forward changes, in the places where the stage finds them.

    Eager runs the backward of a micro-batch before the forward of the next one; here several forwards
    may come first. So each forward changes copies of its own: what a graph has saved, and what a rerun
    has to read, stays as it was. At the end of a step the last values go into the user's buffers.

        user's buffer ── copy ──► forward 0 ── copy ──► forward 1 ── … ──► user's buffer
                      └─ copy         │
                          │           └ read by rerun 1
                          └ read by rerun 0

    What rerun 0 reads is a copy too: a call's backward comes after the user's buffer has got the last
    values.

    Args:
        places: dictionaries that hold a buffer which is written into, each with its key: a module's
            buffers, the attributes of a stage that reads a buffer itself. The places of one buffer
            stand in a group.
        modules: the buffers of all modules the stage calls: forward may put others in their place.
    """

    def __init__(
        self, places: Sequence[Sequence[tuple[_Buffers, str]]], modules: Sequence[_Buffers]
    ) -> None:
        self._places = places
        self._modules = modules
        self._users = Found((), ())
        self._objects: list[Any] = []
        self._copies: list[Any] = []
        self._forked = False

    @property
    def are_there(self) -> bool:
        """Whether the forward changes any buffer in place."""
        return bool(self._places)

    def begin(self) -> None:
        """A step begins: the buffers are the user's."""
        self._users = self._as_now()
        self._objects = list(self._users.changed)
        self._copies = list(self._users.changed)
        self._forked = False

    def found(self) -> Found:
        """The buffers as they are now, for good; `fork` must come before they are changed."""
        if not self._forked:
            self.fork()
        return self._as_now()

    def fork(self) -> None:
        """Let what follows change copies of the buffers."""
        self._forked = True
        if self._places:
            self._note_replaced()
            self._copies = [_copy(value) for value in self._present()]
            self._put(self._copies)

    def end(self, *, keep: bool) -> None:
        """The step is over: the user's buffers come back, with the last values if they are to be kept.

        A buffer that forward has replaced by another object stays replaced: by the last copy of that
        object. The object itself is as the graph of the micro-batch that made it has saved it.
        """
        if keep:
            self._note_replaced()
            with torch.no_grad():
                self._put(list(map(_settle, self._objects, self._present())))
        else:
            self._restore(self._users)
        self._users = Found((), ())
        self._objects, self._copies = [], []

    def _note_replaced(self) -> None:
        """Where the last forward has put another object in a buffer's place, the user's is gone."""
        for at, (value, copy) in enumerate(zip(self._present(), self._copies, strict=True)):
            if value is not copy:
                self._objects[at] = _REPLACED

    def as_in(self, before: Found) -> AbstractContextManager[None]:
        """The buffers as a forward found them; what changes inside is forgotten after.

        Tables that were not there yet, or had another size, are as they are now: the Python code that
        made them knows that it has.
        """
        if self._places or any(before.all) or any(self._modules):
            return self._set_back(before)
        return nullcontext()  # the stage has no buffers: every microsecond counts here

    @contextmanager
    def _set_back(self, before: Found) -> Iterator[None]:
        now = self._as_now()
        tables = list(map(_is_table, before.changed, now.changed))
        self._restore(before)
        self._put(
            [
                _copy(new if is_table else old)
                for old, new, is_table in zip(before.changed, now.changed, tables, strict=True)
            ]
        )
        try:
            yield
        finally:
            self._restore(now)

    def _as_now(self) -> Found:
        return Found(self._present(), [dict(buffers) for buffers in self._modules])

    def _present(self) -> list[Any]:
        return [group[0][0].get(group[0][1], _ABSENT) for group in self._places]

    def _put(self, values: Sequence[Any]) -> None:
        for group, value in zip(self._places, values, strict=True):
            for holder, key in group:
                if value is _ABSENT:
                    holder.pop(key, None)
                else:
                    holder[key] = value

    def _restore(self, found: Found) -> None:
        for buffers, held in zip(self._modules, found.all, strict=True):
            buffers.update(held)
        self._put(found.changed)


def _is_table(before: Any, now: Any) -> bool:
    """Whether a buffer is one that forward has made since, and not one that it counts on in."""
    both = isinstance(before, Tensor) and isinstance(now, Tensor)
    return bool(before.shape != now.shape) if both else before is _ABSENT


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _settle(kept: Any, present: Any) -> Any:
    """The object that stays, with the last value."""
    if kept is _REPLACED:
        return present
    if isinstance(kept, Tensor) and present is not kept:
        kept.copy_(present)
    return kept
