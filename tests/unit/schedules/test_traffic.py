from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Direction, Transfer
from fxpipe.ir.plan import Placement
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.schedules.dualpipe import dualpipe
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.starts import place
from fxpipe.schedules.traffic import traffic
from tests.unit.ir.strategies import stage_graphs


def _u_net(levels: int) -> StageGraph:
    """Down and up, and a skip of three times the size from each level to its mirror image."""
    stages = 2 * levels
    small, large = (TensorSpec((n,), "uint8", requires_grad=True) for n in (100, 300))
    near = [Edge(f"x{s}", s, (s + 1,), small) for s in range(stages - 1)]
    skips = [Edge(f"skip{s}", s, (stages - 1 - s,), large) for s in range(levels - 1)]
    return StageGraph(stages, (), (*near, *skips))


def test_the_fold_of_a_u_net_sends_no_skip() -> None:
    graph = _u_net(4)
    loop, fold = (traffic(graph, p) for p in (Placement.loop(4, 2), Placement.fold(4)))
    assert loop.total_sent == 2 * (7 * 100 + 3 * 300)
    assert loop.local == 0
    # Both ways: the skips, and the value between the two stages of the last rank.
    assert fold.local == 2 * (3 * 300 + 100)
    assert fold.total_sent == 2 * 6 * 100
    assert fold.saved == pytest.approx(2000 / 3200)
    assert str(fold) == (
        "1200 bytes sent per micro-batch over 6 links, 2000 bytes handed over within a rank (62% saved)"
    )
    assert fold.described("{} B".format).startswith(
        "1200 B sent per micro-batch over 6 links, 2000 B "
    )


def test_links_are_directed() -> None:
    assert traffic(linear(2, 10), Placement.loop(2)).sent == {(0, 1): 10, (1, 0): 10}
    assert traffic(linear(2, 10), Placement.loop(2), backward=False).sent == {(0, 1): 10}


def test_a_replica_has_links_of_its_own() -> None:
    placement = dualpipe(2, 2, 4).placement
    one, other = (traffic(linear(2), placement, micro_batch=m).sent for m in (0, 1))
    assert set(one) == set(other) == {(0, 1), (1, 0)}


@given(stage_graphs())
def test_every_byte_is_sent_or_local(graph: StageGraph) -> None:
    totals = {
        found.total_sent + found.local
        for found in (
            traffic(graph, Placement.round_robin(graph.num_stages, ranks))
            for ranks in range(1, graph.num_stages + 1)
        )
    }
    assert len(totals) == 1
    assert traffic(graph, Placement.round_robin(graph.num_stages, 1)).total_sent == 0


@given(stage_graphs(stages=6), st.permutations((0, 0, 1, 1, 2, 2)))
def test_the_programs_send_as_much(graph: StageGraph, ranks: list[int]) -> None:
    """And free of transfer means: no action at all, so no time on the simulator's clock."""
    schedule = place(one_f_one_b(6, 6, 3), Placement(tuple(ranks)))
    nbytes = {edge.value: edge.nbytes for edge in (*graph.inputs, *graph.edges)}
    sent = [
        nbytes[action.value]
        for program in lower(schedule, graph)
        for action in program.actions
        if isinstance(action, Transfer) and action.direction is Direction.SEND
    ]
    assert sum(sent) == 3 * traffic(graph, schedule.placement).total_sent


def test_a_placement_of_other_stages_is_refused() -> None:
    with pytest.raises(ScheduleError, match="a placement of 2 stages for a graph of 4"):
        traffic(linear(4), Placement.loop(2))
