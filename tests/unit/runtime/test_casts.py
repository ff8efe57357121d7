from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import torch
from torch import nn

from fxpipe.runtime.casts import alone, apart


def in_thread(run: Callable[[], None]) -> threading.Thread:
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(run), daemon=True)
    thread.start()
    return thread


def casts_of_two_uses(layer: nn.Linear, between: Callable[[], None]) -> int:
    """How many casts of its weight two calls of a layer have made."""
    x = torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        one = layer(x)
        between()
        other = layer(x)
    nodes = {found.grad_fn.next_functions[2][0].next_functions[0][0] for found in (one, other)}
    return len(nodes)


def test_a_region_that_ends_elsewhere_takes_casts_away() -> None:
    """What this is for; if it fails, torch has changed."""

    def leave() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            pass

    layer = nn.Linear(4, 4)
    assert casts_of_two_uses(layer, lambda: None) == 1
    assert casts_of_two_uses(layer, lambda: in_thread(leave).join()) == 2


def test_apart_takes_nothing_away() -> None:
    def leave() -> None:
        with apart(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            pass

    assert casts_of_two_uses(nn.Linear(4, 4), lambda: in_thread(leave).join()) == 1


def test_alone_waits_for_its_turn() -> None:
    entered, order = threading.Event(), []

    def enter() -> None:
        entered.set()
        with alone():
            order.append("other")

    with alone():
        context = contextvars.Context()
        thread = threading.Thread(target=lambda: context.run(enter), daemon=True)
        thread.start()
        entered.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]


def test_what_runs_inside_does_not_wait() -> None:
    done: list[bool] = []

    def enter() -> None:
        with alone():
            done.append(True)

    with alone():
        in_thread(enter).join(10)
    assert done == [True]


def test_casts_do_not_live_on() -> None:
    layer = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            with alone():
                layer(torch.ones(2, 4)).sum().backward()  # a kept cast's graph would be freed
