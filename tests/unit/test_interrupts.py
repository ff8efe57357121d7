from __future__ import annotations

import signal
import threading

import pytest
import torch

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


IN_TORCH = compile("raise_signal(SIGINT)", torch.__file__, "exec")
"""An interrupt that comes while torch's own Python code runs: torch may have called it from C++."""


def allowed_in_torch(steps: list[str], *, checks: bool) -> None:
    with interrupts.held() as here:
        with here.allowed():
            exec(IN_TORCH, {"raise_signal": signal.raise_signal, "SIGINT": signal.SIGINT})
            steps.append("out of torch")
            if checks:
                here.check()
            steps.append("the end")
        steps.append("never")


def test_code_of_torch_is_left_first() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        allowed_in_torch(steps, checks=True)
    assert steps == ["out of torch"]


def test_it_comes_at_the_end_at_the_latest() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        allowed_in_torch(steps, checks=False)
    assert steps == ["out of torch", "the end"]


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
