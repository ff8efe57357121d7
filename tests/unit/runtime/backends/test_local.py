from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import pytest

from fxpipe.errors import ExecutionError, InternalError
from fxpipe.ir.action import Action, Compute, Kind
from fxpipe.runtime.backends import local
from fxpipe.runtime.backends.local import LocalBackend
from tests.conformance.test_backend import ROUTES


def test_local_ranks_wait_in_the_transport() -> None:
    backend = LocalBackend(1)

    def gives_up() -> Generator[Action, None, None]:
        yield Compute(Kind.FORWARD, 0, 0)

    with pytest.raises(InternalError, match="0F0 was given up"):
        backend.launch([gives_up], backend.transport(ROUTES), nullcontext)
    backend.close()


def test_a_backend_that_is_closed_while_a_step_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread: the workers have ended before they get their work."""
    backend = LocalBackend(1)

    def nothing() -> Generator[Action, None, None]:
        yield from ()

    run_all = local.run_all

    def closes(*args: Any) -> None:
        backend.close()
        run_all(*args)

    monkeypatch.setattr(local, "run_all", closes)
    with pytest.raises(ExecutionError, match="worker thread has ended"):
        backend.launch([nothing, nothing], backend.transport(ROUTES), nullcontext)
    with pytest.raises(ExecutionError, match="closed"):
        backend.launch([nothing, nothing], backend.transport(ROUTES), nullcontext)
