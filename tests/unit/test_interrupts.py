from __future__ import annotations

import signal
import threading

import pytest

from fxpipe import interrupts


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def held(steps: list[str], *, allow: bool = False, error: Exception | None = None) -> None:
    with interrupts.held() as here:
        if allow:
            with here.allowed():
                interrupt()
        else:
            interrupt()
        steps.append("after it")
        if error is not None:
            raise error


def nested(steps: list[str]) -> None:
    with interrupts.held():
        held(steps)
        steps.append("the outer section goes on")


def test_an_interrupt_waits_for_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held(steps)
    assert steps == ["after it"]
    assert signal.getsignal(signal.SIGINT) is before


def test_it_comes_at_once_where_it_is_allowed() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held(steps, allow=True)
    assert steps == []


def test_it_is_not_lost_behind_another_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        held([], error=ValueError())


def test_inner_sections_hand_it_on() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        nested(steps)
    assert steps == ["after it", "the outer section goes on"]


def test_other_threads_change_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def run() -> None:
        with interrupts.held() as here, here.allowed():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
