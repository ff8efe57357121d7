from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.schedules.eager_1f1b import eager_1f1b
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.simulator.engine import simulate
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/eager-1f1b_3_3_6.txt", picture(eager_1f1b(3, 3, 6)))


def test_closed_forms_hold_at_every_size() -> None:
    for p in (*range(1, 9), 16):
        for m in range(1, 65, 9):
            schedule = eager_1f1b(p, p, m)
            assert thirds(schedule).makespan == 3 * (m + p - 1)
            assert peaks(schedule) == tuple(min(m, 2 * (p - s) - 1) for s in range(p))


@pytest.mark.parametrize(("p", "m", "hop"), [(2, 16, 0.5), (4, 16, 1.0), (4, 32, 1.5)])
def test_it_hides_a_hop_each_way(p: int, m: int, hop: float) -> None:
    """1F1B waits for two hops in every turn, eager 1F1B only at the start and the end."""

    def seconds(generator: object) -> float:
        programs = lower(generator(p, p, m), linear(p))  # type: ignore[operator]
        return simulate(programs, [StageCost(1, 2)] * p, Cluster(p, latency=hop)).makespan

    hops = 2 * (p - 1) * hop
    assert seconds(eager_1f1b) == 3 * (m + p - 1) + hops
    assert seconds(one_f_one_b) > seconds(eager_1f1b) + m * hop / 2
