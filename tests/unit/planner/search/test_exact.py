"""The oracle itself, and what it says of the search and of the bound."""

from __future__ import annotations

import math

import pytest

import fxpipe
from fxpipe.planner.search.bounds import lower_bound
from fxpipe.planner.search.problem import Problem
from tests.unit.planner.search.exact import shortest
from tests.unit.planner.search.problems import equal

SMALL = [
    # ranks, stages per rank, micro-batches, room in activations of a rank, (F, I, W), hop
    (2, 1, 4, 2, (1, 1, 1), 0),
    (3, 1, 3, 2, (1, 1, 1), 0),
    (2, 2, 2, 1, (3, 4, 2), 0),
    (2, 2, 3, 1.5, (2, 3, 1), 0),
    (2, 2, 3, 2, (3, 4, 2), 0),
    (3, 1, 4, 2, (3, 4, 2), 0.5),
    (3, 2, 2, 1.5, (2, 3, 1), 0),
]


def test_two_ranks_by_hand() -> None:
    """rank 0: F0 F1 . I0 W0 I1 W1; rank 1 can be done a slot before."""
    assert shortest(equal(2, m=2)) == 7.0
    assert shortest(equal(2, m=2), full=True) == 9.0
    assert shortest(equal(2, m=2, kept=0.5)) == math.inf
    assert shortest(equal(1, m=3)) == 9.0


@pytest.mark.parametrize(("ranks", "v", "m", "kept", "kinds", "hop"), SMALL)
def test_nothing_is_shorter_than_what_the_search_finds(
    ranks: int, v: int, m: int, kept: float, kinds: tuple[float, float, float], hop: float
) -> None:
    both = [
        equal(ranks, v, m, kinds=kinds, kept=kept, hop=hop, fold=fold) for fold in (False, True)
    ]
    best = min(map(shortest, both))
    found = fxpipe.search_schedule(
        both[0].cut.costs,
        int(both[0].limits[0]),
        ranks=ranks,
        micro_batches=m,
        cluster=both[0].cluster,
        stages_per_rank=(v,),
        steps=1000,
        seconds=60,
        progress=False,
    )
    assert found.makespan == pytest.approx(best)
    assert found.bound <= best + 1e-9


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kept", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("fold", [False, True])
def test_the_bound_is_one(full: bool, kept: float, fold: bool) -> None:
    problem: Problem = equal(2, 2, 2, kinds=(2, 3, 1), kept=kept, fold=fold)
    assert lower_bound(problem, split=not full) <= shortest(problem, full=full) + 1e-9
