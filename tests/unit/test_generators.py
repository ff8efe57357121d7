from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from fxpipe.generators import PythonGenerators, set_state, state

DRAWS = {
    "random": (random.Random(3), lambda g: g.random()),
    "numpy's old kind": (np.random.RandomState(3), lambda g: g.rand()),
    "numpy": (np.random.default_rng(3), lambda g: g.random()),
    "torch": (torch.Generator().manual_seed(3), lambda g: float(torch.rand(1, generator=g))),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_state_put_back_draws_the_same_again(name: str) -> None:
    generator, draw = DRAWS[name]
    before = state(generator)
    one, two = draw(generator), draw(generator)
    assert one != two
    set_state(generator, before)
    assert [draw(generator), draw(generator)] == [one, two]


@pytest.mark.parametrize("name", ["random", "numpy's old kind", "numpy"])
def test_held_generators_show_use(name: str) -> None:
    generator, draw = DRAWS[name]
    generators = PythonGenerators([generator, torch.Generator()])
    start = generators.now()
    assert generators.now() == start
    draw(generator)
    assert generators.now() != start


@pytest.mark.parametrize("draw", [random.random, np.random.rand, np.random.randn])
def test_default_generators_show_use(draw: Any) -> None:
    generators = PythonGenerators()
    start = generators.now()
    assert generators.now() == start
    draw()
    assert generators.now() != start


def test_draws_are_replayed_and_then_go_on() -> None:
    held = random.Random(1)
    generators = PythonGenerators([held])

    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), held.random()]

    before = generators.states()
    one = draw()
    after = generators.states()
    with generators.replayed(before):
        assert draw() == one
    two = draw()
    with generators.replayed(after):
        assert draw() == two
    assert draw() not in (one, two)
