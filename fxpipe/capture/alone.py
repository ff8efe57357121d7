"""One thread at a time notes what a model holds, runs it, and puts it back.

Otherwise what one recording has put into a module for its own duration would be taken by another one
for the user's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

_CHANGED: Final = threading.Condition()
_TAKEN: Final[list[tuple[int, frozenset[nn.Module]]]] = []
"""Threads, with modules that are theirs for now; guarded by `_CHANGED`."""


@contextmanager
def alone(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Wait until no other thread is in here with any of the modules."""
    mine = (threading.get_ident(), frozenset(modules))
    with _CHANGED:
        _CHANGED.wait_for(lambda: not any(_are_in_the_way(mine, other) for other in _TAKEN))
        _TAKEN.append(mine)
    try:
        yield
    finally:
        with _CHANGED:
            _TAKEN.remove(mine)
            _CHANGED.notify_all()


def _are_in_the_way(
    mine: tuple[int, frozenset[nn.Module]], other: tuple[int, frozenset[nn.Module]]
) -> bool:
    return mine[0] != other[0] and not mine[1].isdisjoint(other[1])
