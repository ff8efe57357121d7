from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.errors import ScheduleError
from fxpipe.ir.cost import StageCost
from fxpipe.schedules.check import check
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.memory import check_memory
from fxpipe.schedules.zb_auto import zb_auto
from fxpipe.schedules.zb_h1 import zb_h1
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import device_span
from tests.unit.ir.strategies import stage_costs


@given(st.data(), st.integers(1, 5), st.integers(1, 9), st.floats(0, 2))
def test_it_is_legal_and_keeps_to_the_limits(
    data: st.DataObject, p: int, m: int, hop: float
) -> None:
    costs = data.draw(stage_costs(p))
    limits = [cost.saved_bytes * data.draw(st.integers(1, p + 2)) for cost in costs]
    try:
        schedule = zb_auto(costs, m, hop=hop, limits=limits)
    except ScheduleError:
        # Down to a micro-batch at a time there is always an order; between, not every choice fits.
        assert any(limit < cost.saved_bytes * p for limit, cost in zip(limits, costs, strict=True))
        return
    check(schedule, linear(p))
    assert schedule.ascends
    check_memory(lower(schedule, linear(p)), costs, limits)


def test_with_the_memory_of_1f1b_it_is_no_worse_than_zb_h1() -> None:
    costs = [StageCost(1.0, 2.0, 1.0, saved_bytes=1)] * 4
    greedy = zb_auto(costs, 12, limits=[4] * 4)
    times = [device_span(simulate(lower(s, linear(4)), costs)) for s in (greedy, zb_h1(4, 4, 12))]
    assert times[0] <= times[1]


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ScheduleError, match="needs room for at least one"):
        zb_auto([StageCost(1, 2, 1, saved_bytes=10)] * 2, 2, limits=[9, 9])
