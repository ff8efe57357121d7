from itertools import pairwise

import pytest

from fxpipe.partitioners.chain import solve
from fxpipe.partitioners.rows import Chain, Row, Rows, Traffic

ENDLESS = float("inf")


def visits(rows: list[Row]) -> int:
    """How many stages are looked at: starts times ends."""
    return sum(len(row.seconds) for row in rows)


def test_rows_hold_what_each_stage_costs() -> None:
    chain = Chain([1.0, 2.0, 3.0], traffic=[Traffic(made=0, reads=(2,), seconds=0.5)])
    rows = Rows(chain, [0, 1, 2, 3])
    seconds = {
        (row.place, row.reach.start + i): float(cost)
        for row in rows.within(ENDLESS, 3)
        for i, cost in enumerate(row.seconds)
    }
    assert seconds == {
        (0, 1): 1.5,  # the gradient of what it made comes back
        (0, 2): 3.5,
        (0, 3): 6.0,
        (1, 2): 2.0,  # passed over: pays nothing
        (1, 3): 5.5,
        (2, 3): 3.5,
    }


@pytest.mark.parametrize("stages", [2, 8])
def test_even_work_is_looked_at_near_even_cuts_only(stages: int) -> None:
    """Twice the items, no more than twice the stages looked at: nothing grows with their square."""
    looked_at = []
    for size in (1000, 2000, 4000):
        rows = Rows(Chain([1.0] * size), range(size + 1))
        looked_at.append(visits(list(rows.within(1.001 * size / stages, stages))))
    assert all(later <= 2.2 * earlier + 100 for earlier, later in pairwise(looked_at))


def test_a_limit_that_no_partition_keeps_leaves_no_rows() -> None:
    assert visits(list(Rows(Chain([1.0] * 8), range(9)).within(1.5, 4))) == 0


def test_one_heavy_item_leaves_the_others_free() -> None:
    work = [1.0] * 10 + [100.0] + [1.0] * 10
    assert solve(Chain(work), 3) == (10, 11)
