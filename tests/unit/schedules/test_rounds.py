from __future__ import annotations

import pytest

from fxpipe.ir.action import Kind
from fxpipe.schedules.rounds import Rounds


def test_the_order_in_the_docstring() -> None:
    rounds = Rounds(6, 2, 4, 2)
    forwards = " ".join(str(rounds.forward(0, step)) for step in range(rounds.steps))
    assert forwards == "0F0 0F1 2F0 2F1 4F0 4F1 0F2 0F3 2F2 2F3 4F2 4F3"
    backwards = " ".join(str(rounds.backward(Kind.BACKWARD, 1, step)) for step in range(6))
    assert backwards == "5B0 5B1 3B0 3B1 1B0 1B1"


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "size"),
    [(4, 8, 4), (4, 10, 5), (4, 3, 3), (4, 9, 5), (4, 11, 6), (4, 1, 1), (1, 5, 1)],
)
def test_as_many_rounds_as_there_are_full_ones(ranks: int, micro_batches: int, size: int) -> None:
    assert Rounds.of(ranks, ranks, micro_batches).size == size


def test_what_is_not_there_is_left_out() -> None:
    rounds = Rounds(3, 2, 3, 2)
    assert rounds.steps == 8
    row = (rounds.forward(1, step) for step in range(rounds.steps))
    assert str(rounds.schedule(iter([row]), "some")) == "1F0 1F1 1F2"
