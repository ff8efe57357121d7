from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext

import pytest

from fxpipe.errors import InternalError
from fxpipe.ir.action import Action, Compute, Kind
from fxpipe.runtime.backends.local import LocalBackend
from tests.conformance.test_backend import ROUTES


def test_local_ranks_wait_in_the_transport() -> None:
    backend = LocalBackend(1)

    def gives_up() -> Generator[Action, None, None]:
        yield Compute(Kind.FORWARD, 0, 0)

    with pytest.raises(InternalError, match="0F0 was given up"):
        backend.launch([gives_up], backend.transport(ROUTES), nullcontext)
    backend.close()
