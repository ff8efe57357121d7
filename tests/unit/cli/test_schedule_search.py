from __future__ import annotations

import pytest
import typer

from fxpipe.cli.chosen import Counts
from fxpipe.cli.rank_cost import RankCost
from fxpipe.cli.schedule_search import search
from fxpipe.ir.plan import Placement


def test_the_best_is_within_memory_and_told_with_its_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = search(Counts(4, 4), RankCost(), 4, seconds=0.3)
    assert max(chosen.kept) <= 4
    printed = capsys.readouterr().out
    assert f"found: {chosen.timeline.makespan:g}, " in printed
    assert "which no order of these stages on these ranks undercuts" in printed
    assert printed.splitlines()[0].split() == ["tried", "stages", "placement", "step", "kept"]


def test_stages_and_placement_narrow_the_search() -> None:
    chosen = search(Counts(2, 3, 4, "fold"), RankCost(), None, seconds=0.3)
    assert chosen.schedule.placement == Placement.fold(2)
    chosen = search(Counts(2, 3, 4, "loop"), RankCost(), None, seconds=0.3)
    assert chosen.schedule.placement == Placement.loop(2, 2)
    with pytest.raises(typer.BadParameter, match="5 stages do not divide over 2 ranks"):
        search(Counts(2, 3, 5), RankCost(), None, seconds=0.3)
    with pytest.raises(typer.BadParameter, match="'round' is no placement"):
        search(Counts(2, 3, 4, "round"), RankCost(), None, seconds=0.3)


def test_a_placement_says_how_many_stages_and_ranks_there_are() -> None:
    chosen = search(Counts(micro_batches=3, placement="0,1,1,0"), RankCost(), None, seconds=0.3)
    assert chosen.schedule.placement == Placement((0, 1, 1, 0))
    chosen = search(Counts(micro_batches=3, placement="0,0,1,1"), RankCost(), None, seconds=0.3)
    assert chosen.schedule.placement == Placement((0, 0, 1, 1))


def test_with_room_for_one_micro_batch_at_a_time_that_is_what_it_finds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = search(Counts(3, 2), RankCost(), 1, seconds=0.3)
    assert chosen.kept == (1.0, 1.0, 1.0)
    assert "found: " in capsys.readouterr().out
