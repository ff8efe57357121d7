from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.ir.action import Compute, Direction, Kind, Payload, Transfer, Update
from tests.unit.ir.strategies import computes


@given(computes)
def test_text_returns_the_action(action: Compute) -> None:
    assert Compute.from_text(str(action)) == action


def test_texts() -> None:
    assert str(Compute(Kind.BACKWARD_WEIGHT, 12, 3)) == "12W3"
    assert str(Update(4)) == "4U"
    gradient = Transfer(Direction.RECV, Payload.GRADIENT, "x", 2, 0, 5)
    assert str(gradient) == "recv[g:x:2→0]5"


@pytest.mark.parametrize("text", ["", "F0", "0F", "0G1", "0F1x", "-1F0", "0f1"])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no action: expected"):
        Compute.from_text(text)
