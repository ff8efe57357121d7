from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.ir.action import Kind
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Span
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.apart import Apart
from fxpipe.simulator.together import Together
from fxpipe.simulator.wires import Wires
from tests.unit.ir.strategies import stage_costs, stage_graphs


def _both(
    programs: tuple[RankProgram, ...],
    costs: list[StageCost],
    cluster: Cluster,
    graph: StageGraph,
) -> tuple[Apart, Together]:
    actions = [program.actions for program in programs]
    work = [{kind: cost.seconds(kind) for kind in Kind} for cost in costs]
    updates = [cost.update for cost in costs]
    apart = Apart(actions, work, updates, Wires(actions, cluster, graph))
    together = Together(actions, work, updates, Wires(actions, cluster, graph), cluster)
    apart.run()
    together.run()
    return apart, together


def _rounded(spans: list[Span]) -> list[tuple[float, float, str]]:
    return sorted((round(s.start, 6), round(s.end, 6), str(s.action)) for s in spans)


@given(
    st.data(),
    stage_graphs(stages=4),
    st.sampled_from(sorted(SCHEDULES)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0)]),
)
def test_ranks_at_full_speed_run_as_under_one_clock(
    data: st.DataObject,
    graph: StageGraph,
    name: str,
    ranks: int,
    link: tuple[float, float],
) -> None:
    if name in ("dualpipe", "chimera") and ranks == 1:
        return
    programs = lower(SCHEDULES[name](4, ranks, data.draw(st.integers(1, 5))), graph)
    costs = data.draw(stage_costs(4))
    apart, together = _both(programs, costs, Cluster(ranks, *link), graph)
    assert apart.positions == together.positions == [len(p.actions) for p in programs]
    for one, other in zip(apart.spans, together.spans, strict=True):
        assert _rounded(one) == _rounded(other)


@pytest.mark.parametrize("update", [0.0, 2.5])
def test_updates_take_their_time(update: float) -> None:
    programs = lower(Schedule.from_text("0F0 0B0 0U\n1F0 1B0 1U"), linear(2))
    costs = [StageCost(1, 2, update=update)] * 2
    for engine in _both(programs, costs, Cluster(2), linear(2)):
        ends = [spans[-1].end for spans in engine.spans]
        assert ends == [6.0 + update, 4.0 + update]
