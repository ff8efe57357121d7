from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.uncompiled import uncompiled


def counted(calls: list[int]) -> Any:
    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(1)
            return graph(*args)

        return run

    torch._dynamo.reset()
    return torch.compile(nn.Linear(2, 2), backend=backend)


def test_compiled_again_afterwards_also_after_an_error() -> None:
    calls: list[int] = []
    model, x = counted(calls), torch.ones(1, 2)
    uncompiled()  # made and never entered: nothing is set
    model(x)
    assert len(calls) == 1

    def failing() -> None:
        with uncompiled(), uncompiled():
            model(x)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        failing()
    assert len(calls) == 1
    model(x)
    assert len(calls) == 2


def test_threads_that_overlap_leave_nothing_set() -> None:
    calls: list[int] = []
    model, x = counted(calls), torch.ones(1, 2)
    both, first_is_out = threading.Barrier(2, timeout=20), threading.Event()
    seen: list[int] = []

    def first() -> None:
        with uncompiled():
            both.wait()
            both.wait()
        first_is_out.set()

    def second() -> None:
        both.wait()
        with uncompiled():
            both.wait()
            assert first_is_out.wait(20)
            model(x)
            seen.append(len(calls))

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [0]
    model(x)
    assert len(calls) == 1
