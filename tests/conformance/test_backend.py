"""What every backend and its transport do."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import nullcontext

import pytest
from torch.nn.modules.module import _global_forward_pre_hooks

from fxpipe.ir.action import Action, Direction, Payload, Transfer
from fxpipe.runtime.backend import Backend, Cancelled, RankMain, Route, Transport
from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.backends.local import LocalBackend

ROUTES = [
    Route(Payload.ACTIVATION, "x", 0, 1, 0, 1),
    Route(Payload.GRADIENT, "x", 1, 0, 1, 0),
]


@pytest.fixture(params=["inline", "local"])
def backend(request: pytest.FixtureRequest) -> Generator[Backend]:
    made: Backend = InlineBackend() if request.param == "inline" else LocalBackend(1)
    yield made
    made.close()


def waiting(transport: Transport, route: int, micro_batch: int) -> Generator[Action, None, None]:
    action = Transfer(Direction.RECV, Payload.ACTIVATION, "x", 0, 1, micro_batch)
    while not transport.can_receive(route, micro_batch):
        yield action
    if transport.failed:
        raise Cancelled


def test_values_arrive_in_the_order_asked_for(backend: Backend) -> None:
    transport = backend.transport(ROUTES)
    for micro_batch in (2, 0, 1):
        transport.send(0, micro_batch, f"value {micro_batch}")
    transport.send(1, 0, "gradient")
    assert [transport.receive(0, m) for m in (0, 1, 2)] == ["value 0", "value 1", "value 2"]
    assert transport.receive(1, 0) == "gradient"


def test_none_is_a_value(backend: Backend) -> None:
    transport = backend.transport(ROUTES)
    transport.send(0, 0, None)
    assert transport.can_receive(0, 0)
    assert transport.receive(0, 0) is None


def test_a_cancelled_transport(backend: Backend) -> None:
    transport = backend.transport(ROUTES)
    assert not transport.failed
    transport.cancel()
    assert transport.failed
    with pytest.raises(Cancelled):
        transport.receive(0, 0)
    assert not _global_forward_pre_hooks, "where no rank runs, no forward is to end"


def test_ranks_talk_to_each_other(backend: Backend) -> None:
    transport = backend.transport(ROUTES)
    found: list[object] = []

    def first() -> Generator[Action, None, None]:
        for m in range(3):
            transport.send(0, m, m * 10)
        yield from waiting(transport, 1, 2)
        found.append(transport.receive(1, 2))

    def second() -> Generator[Action, None, None]:
        total = 0
        for m in range(3):
            yield from waiting(transport, 0, m)
            total += transport.receive(0, m)
        transport.send(1, 2, total)

    backend.launch([first, second], transport, nullcontext)
    assert found == [30]


def failing(error: BaseException) -> RankMain:
    def main() -> Generator[Action, None, None]:
        raise error
        yield

    return main


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_a_failure_comes_out_as_it_is_and_wakes_the_others(
    backend: Backend, error: BaseException
) -> None:
    transport = backend.transport(ROUTES)

    def waits() -> Generator[Action, None, None]:
        yield from waiting(transport, 0, 0)
        transport.receive(0, 0)

    with pytest.raises(type(error)) as caught:
        backend.launch([waits, failing(error), waits], transport, nullcontext)
    assert caught.value is error
    assert transport.failed
    test_ranks_talk_to_each_other(backend)


def test_surroundings_are_entered_where_the_ranks_run(backend: Backend) -> None:
    entered: list[threading.Thread] = []
    ran: list[threading.Thread] = []

    class Around:
        def __enter__(self) -> None:
            entered.append(threading.current_thread())

        def __exit__(self, *_: object) -> None:
            pass

    def main() -> Generator[Action, None, None]:
        ran.append(threading.current_thread())
        yield from ()

    backend.launch([main, main], backend.transport(ROUTES), Around)
    assert set(entered) == set(ran)
    is_local = isinstance(backend, LocalBackend)
    assert (threading.current_thread() in ran) is not is_local
    assert len(set(ran)) == (2 if is_local else 1)
