from __future__ import annotations

from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.linear import linear
from fxpipe.simulator.compare import compare, imbalance
from fxpipe.simulator.rank_times import RankTimes
from tests.unit.simulator.rows import timeline_of

PREDICTED = timeline_of("0F0@0-1 0B0@4-6", "1F0@1-2 1B0@2-4", source="simulate")
MEASURED = timeline_of("0F0@0-2 0B0@6-8", "1F0@3-4 1B0@4-6")


def test_measured_stands_beside_predicted() -> None:
    lines = str(compare(MEASURED, PREDICTED, linear(2))).splitlines()
    assert lines[0] == "measured   step 8 s, bubble 56.2% of the total (128.6% of ideal)"
    assert lines[1] == "predicted  step 6 s, bubble 50.0% of the total (100.0% of ideal)"
    assert lines[2] == "measured / predicted: 1.33"
    head = ["rank", "busy", "bubble", "imbalance", "waiting", "transfer", "overhead"]
    assert lines[4].split() == head
    assert [line.split() for line in lines[6:]] == [
        ["0", "measured", "4", "s", "50.0%", "1.14", "4", "s", "0", "s", "0", "s"],
        ["predicted", "3", "s", "50.0%", "1.00", "3", "s", "0", "s", "0", "s"],
        ["1", "measured", "3", "s", "62.5%", "0.86", "4", "s", "1", "s", "0", "s"],
        ["predicted", "3", "s", "50.0%", "1.00", "3", "s", "0", "s", "0", "s"],
    ]


def test_imbalance_is_a_ranks_share_of_the_work() -> None:
    ranks = [RankTimes(busy, 0.0, 0.0, 0.0) for busy in (1.0, 3.0)]
    assert [imbalance(times, ranks) for times in ranks] == [0.5, 1.5]
    idle = RankTimes(0.0, 1.0, 0.0, 0.0)
    assert imbalance(idle, [idle]) == 1.0


def test_nothing_compares_with_nothing() -> None:
    empty = Timeline((), "run")
    assert "step 0 s" in str(compare(empty, empty, linear(1)))
