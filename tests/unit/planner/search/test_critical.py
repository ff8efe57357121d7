from __future__ import annotations

from random import Random

from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.critical import Critical
from tests.unit.planner.search.problems import equal


def test_moves_are_of_actions_on_the_critical_path() -> None:
    """Rank 1 to I0, then rank 0: on rank 1, F1 is in the way of I0, and W0 is in nobody's."""
    problem = equal(2, m=2)
    schedule = Schedule.from_text("0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1F1 1I0 1W0 1I1 1W1")
    orders = problem.scorer.orders(schedule)
    critical = Critical(problem)
    critical.look(orders)
    random = Random(0)
    moves = {critical.move(random) for _ in range(300)}
    sources = {(rank, at) for rank, at, _ in moves}
    assert sources <= {(0, 0), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1), (1, 2)}
    assert (1, 1) in sources  # F1 on rank 1, before which I0 could go
    assert (1, 2, 1) in moves
