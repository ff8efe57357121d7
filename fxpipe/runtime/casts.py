"""The casts that autocast keeps of weights, where several threads are in autocast at once.

Autocast casts a weight when it is first used inside a region, and keeps the cast until a thread leaves
its outermost region. There is one store of kept casts for all threads: a stage that leaves would take
another stage's away in the middle of its forward. Whether a weight that is used twice is cast once or
twice decides how the gradients of its uses are added, so numbers would depend on luck. Therefore

- a stage that uses no weight twice keeps no casts, and does not touch the store (`apart`);
- one that may has the store for itself, from empty to empty (`alone`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch

_TURN: Final = threading.Lock()
_HAS_TURN: Final[ContextVar[bool]] = ContextVar("fxpipe_has_casts", default=False)
"""Whether the store belongs to the current context: a pipeline may run inside of a stage."""


@contextmanager
def apart() -> Iterator[None]:
    """Inside, no region that ends takes kept casts away."""
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()


@contextmanager
def alone() -> Iterator[None]:
    """Inside, no other stage's regions keep casts; none are there before, and none after."""
    if _HAS_TURN.get():
        yield
        return
    with _TURN:
        token = _HAS_TURN.set(True)
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            _HAS_TURN.reset(token)
