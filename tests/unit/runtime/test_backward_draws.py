"""`fxpipe.runtime.backward_draws`: where each stage goes on counting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge
from fxpipe.runtime.backward_draws import BackwardDraws, Drawn
from tests.unit.runtime.stages import DIFFERENTIABLE


def _step(stages: int) -> Any:
    return SimpleNamespace(key=1, drawn={}, frames=[None] * stages)


def _draws(stage: int, *writes: Edge) -> BackwardDraws:
    return BackwardDraws(stage, SimpleNamespace(writes=writes, reads=()))  # type: ignore[arg-type]


def _draw(draws: BackwardDraws, step: Any, count: int) -> list[Tensor]:
    with draws.keyed(step, 0, ()):
        return [torch.rand(3) for _ in range(count)]


def test_a_chain_counts_as_one_stage_does() -> None:
    first, last = _draws(0, Edge("v", 0, (1,), DIFFERENTIABLE)), _draws(1)
    two, one = _step(2), _step(1)
    found = [*_draw(last, two, 2), *_draw(first, two, 1)]
    assert two.drawn[0, 0] == Drawn(3, frozenset({0, 1}))
    assert all(map(torch.equal, found, _draw(_draws(0), one, 3)))


def test_stages_beside_each_other_draw_other_numbers() -> None:
    """Neither is after the other: both begin where the last one has ended."""
    step = _step(3)
    _draws(2).pass_on(step, 0)
    beside = [_draws(stage, Edge(f"v{stage}", stage, (2,), DIFFERENTIABLE)) for stage in (0, 1)]
    (one,), (two,) = (_draw(each, step, 1) for each in beside)
    assert not torch.equal(one, two)


def test_a_value_without_gradient_orders_nothing() -> None:
    step = _step(2)
    _draw(_draws(1), step, 2)
    _draws(0, Edge("mask", 0, (1,), TensorSpec((2,), "bool"))).pass_on(step, 0)
    assert step.drawn[0, 0].count == 0


def test_only_the_first_backward_is_looked_at_if_it_draws_nothing() -> None:
    draws, state = _draws(0), torch.get_rng_state()
    _draw(draws, _step(1), 0)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(_draw(draws, _step(1), 1)[0], expected)
    torch.set_rng_state(state)


def test_a_backward_that_fails_keeps_nothing_for_later_stages() -> None:
    step = _step(1)
    draws = _draws(0)
    with pytest.raises(RuntimeError, match="size"):
        _fail(draws, step)
    assert step.drawn == {}


def _fail(draws: BackwardDraws, step: Any) -> None:
    with draws.keyed(step, 0, ()):
        torch.zeros(2) + torch.zeros(3)
