from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.ir.action import (
    Cell,
    Compute,
    Direction,
    Fused,
    Kind,
    Payload,
    Transfer,
    Update,
    cell_from_text,
    computes_of,
)
from tests.unit.ir.strategies import cells, computes


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
    with pytest.raises(ValueError, match="is no action: "):
        Compute.from_text(text)


@given(cells)
def test_text_returns_the_cell(cell: Cell) -> None:
    assert cell_from_text(f" {cell} ") == cell


def test_texts_of_cells() -> None:
    both = Fused((Compute(Kind.FORWARD, 0, 4), Compute(Kind.BACKWARD, 3, 1)))
    assert str(both) == "(0F4;3B1)OVERLAP_F_B"
    assert str(Compute(Kind.RECOMPUTE, 2, 0)) == "2R0"
    assert computes_of(both) == both.actions
    assert computes_of(Update(1)) == ()


def test_a_fused_cell_has_two_actions() -> None:
    with pytest.raises(ValueError, match="two actions or more, got 1"):
        cell_from_text("(0F4)OVERLAP_F_B")


@pytest.mark.parametrize("text", ["U", "0F0)OVERLAP_F_B", "(0F0;1U)OVERLAP_F_B", "(0F0;1B0)"])
def test_what_is_no_cell_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no action: "):
        cell_from_text(text)


def test_numbers_count_from_zero() -> None:
    for stage, micro_batch in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="count from 0"):
            Compute(Kind.FORWARD, stage, micro_batch)
