from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.runtime.loss_draws import LossDraws, generators_of

CPU = torch.device("cpu")
GLOBAL = torch.Generator()


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mine = np.random.default_rng(0)

    def loss(self, output: Any, target: Any) -> Any:
        return self.mine.random()


def test_where_a_function_has_generators() -> None:
    closed, held = torch.Generator(), Held()

    def closes(output: Any, target: Any, *, by_default: Any = held) -> Any:
        return closed, by_default

    def names(output: Any, target: Any) -> Any:
        return GLOBAL

    assert set(generators_of(closes)) == {closed, held.mine}
    assert generators_of(names) == [GLOBAL]
    assert generators_of(held) == generators_of(held.loss) == [held.mine]
    mine = random.Random(0)
    assert set(generators_of(partial(closes, mine))) == {mine, closed, held.mine}
    assert generators_of(torch.nn.functional.mse_loss) == []


@pytest.mark.parametrize(
    "draw", [lambda: float(torch.rand(())), random.random, lambda: float(np.random.rand())]
)
def test_what_was_drawn_is_drawn_again(draw: Any) -> None:
    draws = LossDraws(draw, CPU)
    before = draws.begin()
    first = draw()
    assert draws.moved(before)
    second = draw()
    with draws.replayed(before):
        assert draw() == first
    assert draw() != second, "it goes on where it was"


def test_what_draws_nothing() -> None:
    draws = LossDraws(torch.nn.functional.mse_loss, CPU)
    assert not draws.moved(draws.begin())
    before = draws.begin()
    torch.rand(())
    assert draws.moved(before), "torch's generators are looked at every time"


def test_generators_that_a_loss_holds_are_looked_at_every_time() -> None:
    held = Held()
    draws = LossDraws(held.loss, CPU)
    assert not draws.moved(draws.begin())
    before = draws.begin()
    first = held.mine.random()
    assert draws.moved(before)
    with draws.replayed(before):
        assert held.mine.random() == first


def test_the_state_goes_on_after_a_replay() -> None:
    torch.manual_seed(0)
    expected = [float(torch.rand(())) for _ in range(3)]
    torch.manual_seed(0)
    draws = LossDraws(torch.rand, CPU)
    before = draws.begin()
    found = [float(torch.rand(())) for _ in range(2)]
    with draws.replayed(before):
        assert [float(torch.rand(())) for _ in range(3)] == expected
    assert [*found, float(torch.rand(()))] == expected
