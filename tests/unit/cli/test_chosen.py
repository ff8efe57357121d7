from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fxpipe.cli.chosen import Counts, choose, read_placement
from fxpipe.cli.rank_cost import RankCost
from fxpipe.ir.plan import Placement
from fxpipe.schedules.registry import SCHEDULES

COST = RankCost()


def test_a_schedule_has_the_stages_that_it_is_made_for() -> None:
    assert choose("zb-v", Counts(), COST).schedule == SCHEDULES["zb-v"](8, 4, 8)
    assert choose("1f1b", Counts(ranks=3), COST).schedule == SCHEDULES["1f1b"](3, 3, 8)
    assert choose("1F1B", Counts(3, 5, 6), COST).schedule == SCHEDULES["1f1b"](6, 3, 5)


def test_schedules_with_other_numbers_of_stages_are_comparable() -> None:
    one, two = choose("1f1b", Counts(4, 16), COST), choose("interleaved-1f1b", Counts(4, 16), COST)
    assert one.timeline.makespan == 57.0
    assert two.timeline.makespan == 52.5
    assert (max(one.kept), max(two.kept)) == (4.0, 5.5)
    assert [two.timeline.busy(rank) for rank in range(4)] == [48.0] * 4


def test_transfers_take_their_time() -> None:
    slow = choose("forward", Counts(3, 1), RankCost(transfer=0.5))
    assert slow.timeline.makespan == 4.0


def test_any_placement_where_the_schedule_takes_one() -> None:
    own = choose("1f1b", Counts(placement="0,1,1,0"), COST).schedule
    assert own.placement == Placement((0, 1, 1, 0))
    fold = choose("zb-h1", Counts(ranks=3, placement="fold"), COST).schedule
    assert fold.placement == Placement.fold(3)
    assert choose("zb-h1", Counts(ranks=3, placement="V"), COST).schedule == fold
    zig_zag = choose("1f1b", Counts(ranks=2, stages=8, placement="zig-zag"), COST).schedule
    assert zig_zag.placement == Placement.fold(2, 4)
    loop = choose("gpipe", Counts(ranks=3, placement="loop"), COST).schedule
    assert loop.placement == Placement.loop(3)
    with pytest.raises(typer.BadParameter, match=r"hanayo decides itself.* taken by gpipe, 1f1b, "):
        choose("hanayo", Counts(placement="fold"), COST)
    function = "tests.unit.cli.models:backwards_schedule"
    with pytest.raises(typer.BadParameter, match="the function decides itself"):
        choose(function, Counts(placement="fold"), COST)


def test_a_file_has_its_own_counts(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1\n")
    chosen = choose(str(path), Counts(), COST)
    assert str(chosen) == "mine: 2 ranks, 2 stages, 2 micro-batches"
    with pytest.raises(typer.BadParameter, match="schedule 'mine' has 2 ranks, not 3"):
        choose(str(path), Counts(ranks=3, micro_batches=2), COST)
    with pytest.raises(typer.BadParameter, match="says itself what runs on which rank"):
        choose(str(path), Counts(placement="fold"), COST)


def test_its_name_counts_in_singular_and_plural() -> None:
    assert str(choose("gpipe", Counts(1, 1), COST)) == "gpipe: 1 rank, 1 stage, 1 micro-batch"
    replicated = choose("chimera", Counts(2, 2), COST)
    assert str(replicated) == "chimera: 2 ranks, 2 stages, 2 copies of each, 2 micro-batches"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spiral", "'spiral' is no placement"),
        ("0,1", "a rank for each of 4 stages, and all of 2 ranks"),
        ("0,0,0,0", "all of 2 ranks"),
        ("0,1,2,0", "all of 2 ranks"),
        ("", "is no placement"),
    ],
)
def test_placements_that_are_none(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        read_placement(text, 4, 2)


def test_a_fold_has_as_many_stages_on_every_rank() -> None:
    assert read_placement("Fold", 4, 2) == Placement.fold(2)
    with pytest.raises(typer.BadParameter, match="a fold of 5 stages does not fit 2 ranks"):
        read_placement("fold", 5, 2)


def test_it_knows_whether_it_is_what_its_name_says() -> None:
    assert choose("v-half", Counts(3, 4), COST).is_as_named
    assert not choose("1f1b", Counts(ranks=3, placement="fold"), COST).is_as_named
