from __future__ import annotations

from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.reruns import with_reruns


def programs(text: str) -> tuple[RankProgram, ...]:
    return lower(Schedule.from_text(text), linear(2))


GPIPE = "0F0 0F1 0B0 0B1\n1F0 1F1 1I0 1W0 1B1"


def test_a_rerun_is_part_of_the_backward() -> None:
    first, last = with_reruns(programs(GPIPE), lambda m: True)
    assert [str(a) for a in first.actions if str(a)[:2] in ("0R", "0B")] == (
        ["0R0", "0B0", "0R1", "0B1"]
    )
    at = [str(action) for action in first.actions].index("0R0")
    assert str(first.actions[at + 1]) == "0B0"  # the gradient was received before
    kinds = [str(a) for a in last.actions if str(a)[:2] in ("1F", "1R", "1I", "1W", "1B")]
    assert kinds == ["1F0", "1F1", "1R0", "1I0", "1W0", "1R1", "1B1"]


def test_some_micro_batches_alone() -> None:
    first, _ = with_reruns(programs(GPIPE), lambda m: m < 1)
    assert "0R0" in map(str, first.actions)
    assert "0R1" not in map(str, first.actions)
    assert with_reruns(programs(GPIPE), lambda m: False) == programs(GPIPE)


def test_the_schedules_own_recomputations_stay() -> None:
    text = "0F0 0R0 0B0\n1F0 1B0"
    first, last = with_reruns(programs(text), lambda m: True)
    assert [str(action) for action in first.actions].count("0R0") == 1
    assert first == programs(text)[0]
    assert "1R0" in map(str, last.actions)
