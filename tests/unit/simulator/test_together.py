from __future__ import annotations

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.simulator.engine import simulate


def test_ranks_slow_each_other_down_only_while_both_compute() -> None:
    """rank 0: F0 alone, then F1 beside rank 1's F0 at half speed, …"""
    half = Cluster(2, speeds=(1.0, 0.5))
    timeline = simulate(lower(one_f_one_b(2, 2, 2), linear(2)), [StageCost(1, 1)] * 2, half)
    spans = [(str(s.action), s.start, s.end) for r in (0, 1) for s in timeline.compute_spans(r)]
    assert spans == [
        ("0F0", 0.0, 1.0),
        ("0F1", 1.0, 3.0),
        ("0B0", 4.0, 6.0),
        ("0B1", 7.0, 8.0),
        ("1F0", 1.0, 3.0),
        ("1B0", 3.0, 4.0),
        ("1F1", 4.0, 6.0),
        ("1B1", 6.0, 7.0),
    ]


def test_a_slow_rank_is_as_slow_alone() -> None:
    slow = Cluster(1, speeds=(0.25,))
    timeline = simulate(lower(one_f_one_b(1, 1, 2), linear(1)), [StageCost(1, 2)], slow)
    assert timeline.makespan == 24.0
