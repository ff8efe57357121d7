from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.planner.search.bounds import lower_bound
from fxpipe.planner.search.listing import Rules, list_schedule
from fxpipe.planner.search.problem import Problem
from tests.unit.planner.search.problems import equal, problems


@pytest.mark.parametrize(("v", "bound"), [(1, 55.0), (2, 51.5), (4, 49.75)])
@pytest.mark.parametrize("fold", [False, True])
def test_equal_ranks_with_room(v: int, bound: float, fold: bool) -> None:
    """``m (F + I + W) + (p - 1) F / v`` for v >= 2; for v = 1 the tail of input halves counts."""
    assert lower_bound(equal(8, v, 16, fold=fold)) == bound


def test_without_split_backwards_it_is_what_one_f_one_b_takes() -> None:
    assert lower_bound(equal(8, 1, 16), split=False) == 69.0


def test_memory_for_one_micro_batch_is_one_after_another() -> None:
    """Forward and back; the activation is kept on rank 0 all the time, weight half included."""
    assert lower_bound(equal(4, 1, 5, kept=1)) == 5 * (4 + 4 + 1)


def test_a_hop_lengthens_head_and_chain() -> None:
    assert lower_bound(equal(4, 1, 1, hop=0.5)) == 4 + 4 + 1 + 6 * 0.5


def test_recomputation_is_work_and_saves_memory() -> None:
    usual = equal(2, 1, 8, kept=1, input_bytes=1)
    again = equal(2, 1, 8, input_bytes=1, recomputed=frozenset({0, 1}))
    assert lower_bound(again) == 1 + 8 * 4
    assert lower_bound(usual, recompute=True) < lower_bound(usual)


@given(problems(limited=True))
def test_no_list_is_shorter(problem: Problem) -> None:
    for split in (True, False):
        urgency = [0.0] * len(problem.scorer.tables.seconds)
        orders = list_schedule(problem, Rules(urgency, split=split))
        assert orders is not None
        score = problem.score(orders)
        assert score.makespan >= lower_bound(problem, split=split) - 1e-9
