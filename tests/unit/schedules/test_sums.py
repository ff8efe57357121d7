from __future__ import annotations

import pytest

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.sums import sums_note


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_with_a_name(name: str) -> None:
    schedule = SCHEDULES[name](4, 4, 4)
    assert ("two copies" in sums_note(schedule)) == (schedule.replicas > 1)
    assert bool(sums_note(schedule)) == (name in ("dualpipe", "chimera"))


def test_other_orders() -> None:
    assert "out of ascending order" in sums_note(Schedule.from_text("0F0 0F1 0B1 0B0"))
    assert not sums_note(Schedule.from_text("0F0 0F1 0B0 0B1"))
    assert not sums_note(Schedule.from_text("0F1 0F0"))
