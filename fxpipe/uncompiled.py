"""Running what torch.compile has compiled as it is written, while something watches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch

_LOCK: Final = threading.Lock()
_FORCED: Final = ExitStack()
"""Holds torch's setting while a context is entered."""
_inside = 0
"""How many contexts are entered, in all threads."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """A context in which compiled modules run as written.

    Under a dispatch or function mode a compiled module runs uncompiled anyway, and the compiler then
    leaves it uncompiled for good, without a word.

    The setting of torch is one for all threads. So the first thread that comes sets it, and the last
    one that goes puts it back: each putting back what it had found would leave it set for ever.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside
    with _LOCK:
        if not _inside:
            _FORCED.enter_context(torch.compiler.set_stance("force_eager"))
        _inside += 1


def _leave() -> None:
    global _inside
    with _LOCK:
        _inside -= 1
        if not _inside:
            _FORCED.close()
