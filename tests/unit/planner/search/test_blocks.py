from __future__ import annotations

import pytest

from fxpipe.planner.search.blocks import blocks, promising
from fxpipe.schedules.v_pattern import PERIOD, v_pattern
from tests.unit.planner.search.problems import equal


@pytest.mark.parametrize("ranks", [2, 4, 7, 8])
def test_slots_go_on_and_differ(ranks: int) -> None:
    found = list(blocks(ranks))
    assert found
    for one in found:
        for row in one.block:
            assert list(row) == sorted(set(row))
            assert len({slot % PERIOD for slot in row}) == 4


def test_they_contain_v_min_and_v_half() -> None:
    """Their slopes, for 4 ranks: V-Min's down, up, down, up; V-Half's twice as steep down as up."""
    found = [one.block for one in blocks(4)]
    assert [(r, 7 - r, 8 + r, 15 - r) for r in range(4)] in found
    assert [(2 * r, 10 - r, 14 + 2 * r, 25 - r) for r in range(4)] in found


def test_promising_ones_use_the_room() -> None:
    found = promising(8, 6.0, 10)
    assert len(found) == 10
    assert all(5.0 <= one.kept <= 5.55 for one in found)
    assert promising(8, 1.0, 10) == []


def test_more_room_is_less_time() -> None:
    """8 ranks, 16 micro-batches: between V-Min (61.5 with 4) and ZB-V (51.5 with 8), and below V-Min."""
    problem = equal(8, 2, 16, fold=True)
    times = []
    for room in (4.0, 5.0, 6.0, 8.0):
        scores = [
            problem.score(problem.scorer.orders(v_pattern(one.block, 16, "v")))
            for one in promising(8, room, 24)
        ]
        fitting = [score.makespan for score in scores if max(score.peaks) <= 8 * room]
        times.append(min(fitting))
    assert times == [59.5, 56.5, 53.5, 51.5]
