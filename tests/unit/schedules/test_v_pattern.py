from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.schedules.check import check
from fxpipe.schedules.linear import linear
from fxpipe.schedules.v_pattern import PERIOD, v_pattern


def test_slots_of_a_rank_must_not_clash() -> None:
    with pytest.raises(ValueError, match=r"rank 1 has slots \(1, 7, 9, 11\): some are the same"):
        v_pattern([(0, 3, 4, 11), (1, 7, 9, 11)], 2, "mine")


@given(st.data(), st.integers(1, 4), st.integers(1, 8))
def test_any_block_that_flows_is_legal(data: st.DataObject, ranks: int, micro_batches: int) -> None:
    """Down, up, down, up with any pauses that keep a rank's slots apart."""
    slots: list[list[int]] = [[] for _ in range(ranks)]
    now = -1
    for way in (range(ranks), range(ranks)[::-1]) * 2:
        for rank in way:
            taken = {slot % PERIOD for slot in slots[rank]}
            now += data.draw(st.integers(1, 4))
            while now % PERIOD in taken:
                now += 1
            slots[rank].append(now)
    block = [(a, b, c, d) for a, b, c, d in slots]
    schedule = v_pattern(block, micro_batches, "mine")
    check(schedule, linear(2 * ranks))
    assert schedule.ascends
