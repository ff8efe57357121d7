from __future__ import annotations

import pytest
import typer

from fxpipe.cli.rank_cost import RankCost, rank_cost
from fxpipe.ir.cost import StageCost


def test_a_stage_has_its_share() -> None:
    cost = RankCost(2.0, 3.0, 1.0)
    assert cost.of_stage(8, 4) == StageCost(1.0, 2.0, 0.5, saved_bytes=1)
    assert cost.of_stage(4, 4) == StageCost(2.0, 4.0, 1.0, saved_bytes=1)


@pytest.mark.parametrize(
    ("given", "halves"),
    [
        ((None, None, None), (1.0, 1.0)),
        ((3.0, None, None), (3.0, 1.0)),
        ((None, None, 5.0), (2.5, 2.5)),
        ((2.0, None, 5.0), (2.0, 3.0)),
        ((None, 1.0, 5.0), (4.0, 1.0)),
        ((0.0, 2.0, None), (0.0, 2.0)),
    ],
)
def test_a_backward_or_its_halves(
    given: tuple[float | None, float | None, float | None], halves: tuple[float, float]
) -> None:
    cost = rank_cost(1.0, *given, 0.0)
    assert (cost.input, cost.weight) == halves


def test_costs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="give two of them"):
        rank_cost(1.0, 1.0, 1.0, 2.0, 0.0)
    with pytest.raises(typer.BadParameter, match="cannot be negative, got F 1, I -1, W 3"):
        rank_cost(1.0, None, 3.0, 2.0, 0.0)
    for forward, transfer in ((float("nan"), 0.0), (1.0, float("inf"))):
        with pytest.raises(typer.BadParameter, match="have to be finite numbers"):
            rank_cost(forward, None, None, None, transfer)
    with pytest.raises(typer.BadParameter, match="something has to take time"):
        rank_cost(0.0, 0.0, 0.0, None, 1.0)


def test_text() -> None:
    assert str(RankCost(1.5)) == "F 1.5, I 1, W 1"
    assert str(RankCost(transfer=0.25)) == "F 1, I 1, W 1, transfer 0.25"
