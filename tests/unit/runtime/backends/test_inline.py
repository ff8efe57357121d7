from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import nullcontext

import pytest

from fxpipe.errors import DeadlockError
from fxpipe.ir.action import Action
from fxpipe.runtime.backends.inline import InlineBackend
from tests.conformance.test_backend import ROUTES, waiting


def test_inline_says_who_waits_for_what() -> None:
    backend = InlineBackend()
    transport = backend.transport(ROUTES)
    mains: list[Callable[[], Generator[Action, None, None]]] = [
        lambda: waiting(transport, 1, 0),
        lambda: waiting(transport, 0, 1),
    ]
    with pytest.raises(DeadlockError) as caught:
        backend.launch(mains, transport, nullcontext)
    assert "rank 0 waits for recv[a:x:0→1]0; rank 1 waits for recv[a:x:0→1]1" in str(caught.value)


def test_inline_runs_in_order_of_the_needs() -> None:
    backend = InlineBackend()
    transport = backend.transport(ROUTES)
    order: list[str] = []

    def first() -> Generator[Action, None, None]:
        yield from waiting(transport, 1, 0)
        order.append("first")

    def second() -> Generator[Action, None, None]:
        order.append("second")
        transport.send(1, 0, None)
        yield from ()

    backend.launch([first, second], transport, nullcontext)
    assert order == ["second", "first"]
