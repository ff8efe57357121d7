from __future__ import annotations

from fxpipe.ir.action import Kind
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.schedules.linear import linear
from fxpipe.simulator.tables import KINDS, Tables

COST = StageCost(1, 5, 2, saved_bytes=10, weight_bytes=4, input_bytes=3)


def _tables(cluster: Cluster, ranks: tuple[int, ...] = (0, 1), recomputed: int = -1) -> Tables:
    return Tables(linear(2, 100), [COST] * 2, Placement(ranks), 1, cluster, {recomputed})


def _at(kind: Kind, stage: int) -> int:
    return KINDS.index(kind) * 2 + stage


def test_what_is_kept_adds_up_to_nothing() -> None:
    for recomputed in (-1, 0):
        tables = _tables(Cluster(2), recomputed=recomputed)
        ways = ["FB", "FIW"] if recomputed else ["FRB", "FRIW"]
        for way in ways:
            numbers = [_at(Kind(letter), 0) for letter in way]
            assert sum(tables.more[n] - tables.less[n] for n in numbers) == 0


def test_a_need_of_another_rank_comes_after_the_latency() -> None:
    apart, together = _tables(Cluster(2, latency=0.5)), _tables(Cluster(2, latency=0.5), (0, 0))
    moment = apart.makes[_at(Kind.FORWARD, 0)]
    assert apart.needs[_at(Kind.FORWARD, 1)] == ((moment, 0.5),)
    assert together.needs[_at(Kind.FORWARD, 1)] == ((moment, 0.0),)
    assert apart.links == 0


def test_links_of_finite_bandwidth_are_busy_for_the_bytes() -> None:
    tables = _tables(Cluster(2, latency=0.5, bandwidth=50.0))
    ((arrival, _),) = tables.needs[_at(Kind.FORWARD, 1)]
    assert tables.sends[_at(Kind.FORWARD, 0)] == ((arrival, 0, 2.0),)
    assert tables.links == 2
    assert arrival < tables.moments


def test_nothing_waits_for_a_weight_half() -> None:
    tables = _tables(Cluster(2))
    assert tables.makes[_at(Kind.BACKWARD_WEIGHT, 0)] == -1
    assert tables.makes[_at(Kind.BACKWARD, 0)] == tables.makes[_at(Kind.BACKWARD_INPUT, 0)] >= 0
