from __future__ import annotations

import math

import pytest

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.planner.search.named import named, placed, recomputing
from fxpipe.planner.search.problem import Cut
from fxpipe.planner.search.space import Space
from fxpipe.schedules.check import check
from fxpipe.schedules.linear import linear
from fxpipe.schedules.registry import SCHEDULES


def _space(limit: float = math.inf, input_bytes: int = 0, **choices: bool) -> tuple[Space, Cut]:
    cost = StageCost(1, 2, 1, saved_bytes=10, input_bytes=input_bytes)
    cut = Cut((cost,) * 4, linear(4))
    return Space((cut,), 4, 6, Cluster(4), (limit,) * 4, **choices), cut


def test_all_of_them() -> None:
    space, cut = _space(replicas=True)
    found = list(named(space, cut))
    assert {one.name for one in found} == {*SCHEDULES, "zb-auto"} - {"forward"}
    assert all(one.named == (one.name != "zb-auto") and one.fits for one in found)


def test_two_copies_and_split_backwards_only_if_wanted() -> None:
    space, cut = _space(split=False)
    found = list(named(space, cut))
    assert {one.name for one in found}.isdisjoint({"dualpipe", "chimera", "zb-h1", "zb-auto"})
    assert not any(one.schedule.splits_backward for one in found)


def test_too_much_is_said_and_recomputed() -> None:
    space, cut = _space(limit=20.0, input_bytes=1)
    plain = next(one for one in named(space, cut) if one.name == "1f1b")
    assert not plain.fits
    again = recomputing(space, plain)
    assert again is not None
    assert again.fits
    assert not again.named
    assert again.problem.recomputed == {0, 1}  # of the ranks that keep four and three
    check(again.schedule, cut.graph)
    assert again.score.makespan >= plain.score.makespan
    assert recomputing(space, again) is again


@pytest.mark.parametrize("input_bytes", [0, 10])
def test_no_recomputation_where_it_saves_nothing_or_nobody_knows(input_bytes: int) -> None:
    space, cut = _space(limit=20.0, input_bytes=input_bytes)
    plain = next(one for one in named(space, cut) if one.name == "1f1b")
    assert recomputing(space, plain) is None


def test_on_a_fold() -> None:
    cost = StageCost(1, 2, 1)
    cut = Cut((cost,) * 8, linear(8))
    space = Space((cut,), 4, 6, Cluster(4), (math.inf,) * 4)
    loop, fold = space.placements_of(cut)
    assert list(placed(space, cut, loop)) == []
    found = list(placed(space, cut, fold))
    assert {one.name for one in found} >= {"1f1b, placed", "zb-h1, placed"}
    assert all(one.problem.placement == fold and not one.named for one in found)
