"""Rerunning a forward at backward: which ones, with which buffers.

A rerun draws the same random numbers, since they are keyed, and reads every buffer as the first
forward read it. What it changes is thrown away: a second forward is no second update.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from torch import Tensor


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


class ChangedBuffers:
    """The buffers that a stage's forward changes, in the places where the stage finds them.

    Args:
        places: dictionaries that hold such a buffer, each with its key: a module's buffers, the
            attributes of a stage that reads a buffer itself. The places of one buffer stand in a group.
    """

    def __init__(self, places: Sequence[Sequence[tuple[MutableMapping[str, Any], str]]]) -> None:
        self._places = places

    def copies(self) -> list[Tensor | None]:
        """Each buffer as it is now."""
        found = []
        for group in self._places:
            holder, key = group[0]
            value = holder.get(key)
            found.append(None if value is None else value.detach().clone())
        return found

    @contextmanager
    def as_in(self, copies: Sequence[Tensor | None]) -> Iterator[None]:
        """The buffers as they were; the present ones come back after, untouched.

        Other objects stand in for the buffers. Writing old values into them would change what
        other micro-batches' graphs have saved.
        """
        present = [[(d, key, d.get(key)) for d, key in group] for group in self._places]
        try:
            for group, copy in zip(self._places, copies, strict=True):
                for holder, key in group:
                    holder[key] = copy
            yield
        finally:
            for entries in present:
                for holder, key, value in entries:
                    holder[key] = value
