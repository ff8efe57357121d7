from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Compute, Direction, Payload, Transfer
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from tests.unit.ir.strategies import counts, stage_graphs

FLOAT = TensorSpec((2,), "float32", requires_grad=True)
MASK = TensorSpec((2,), "bool")


def _texts(programs: tuple[RankProgram, ...]) -> list[str]:
    return [" ".join(map(str, program.actions)) for program in programs]


def test_a_chain() -> None:
    assert _texts(lower(Schedule.from_text("0F0 0B0\n1F0 1B0"), linear(2))) == [
        "0F0 send[a:x0:0→1]0 recv[g:x0:1→0]0 0B0",
        "recv[a:x0:0→1]0 1F0 1B0 send[g:x0:1→0]0",
    ]


def test_a_portal_goes_straight_and_its_gradient_comes_straight() -> None:
    graph = StageGraph(3, (), (Edge("x", 0, (1,), FLOAT), Edge("skip", 0, (2,), FLOAT)))
    assert _texts(lower(gpipe(3, 3, 1), graph)) == [
        "0F0 send[a:x:0→1]0 send[a:skip:0→2]0 recv[g:x:1→0]0 recv[g:skip:2→0]0 0B0",
        "recv[a:x:0→1]0 1F0 1B0 send[g:x:1→0]0",
        "recv[a:skip:0→2]0 2F0 2B0 send[g:skip:2→0]0",
    ]


def test_a_value_with_two_readers_gathers_its_gradient_down_the_chain() -> None:
    graph = StageGraph(3, (), (Edge("x", 0, (1, 2), FLOAT),))
    assert _texts(lower(gpipe(3, 3, 1), graph)) == [
        "0F0 send[a:x:0→1]0 send[a:x:0→2]0 recv[g:x:1→0]0 0B0",
        "recv[a:x:0→1]0 1F0 recv[g:x:2→1]0 1B0 send[g:x:1→0]0",
        "recv[a:x:0→2]0 2F0 2B0 send[g:x:2→1]0",
    ]


def test_an_input_read_twice_gathers_its_gradient_at_its_first_reader() -> None:
    graph = StageGraph(3, (Edge("image", HOST, (0, 2), FLOAT),), ())
    assert _texts(lower(gpipe(3, 3, 1), graph)) == [
        "0F0 recv[g:image:2→0]0 0B0",
        "1F0 1B0",
        "2F0 2B0 send[g:image:2→0]0",
    ]


def test_no_gradient_of_what_has_none() -> None:
    graph = StageGraph(2, (Edge("m", HOST, (0, 1), MASK),), (Edge("mask", 0, (1,), MASK),))
    assert _texts(lower(gpipe(2, 2, 1), graph)) == [
        "0F0 send[a:mask:0→1]0 0B0",
        "recv[a:mask:0→1]0 1F0 1B0",
    ]


def test_stages_of_one_rank_hand_over_without_transfers() -> None:
    graph = StageGraph(2, (), (Edge("x", 0, (1,), FLOAT),))
    assert _texts(lower(gpipe(2, 1, 1), graph)) == ["0F0 1F0 1B0 0B0"]


def test_the_input_half_of_a_split_backward_moves_the_gradient() -> None:
    schedule = Schedule.from_text("0F0 0I0 0W0\n1F0 1I0 1W0")
    assert _texts(lower(schedule, linear(2))) == [
        "0F0 send[a:x0:0→1]0 recv[g:x0:1→0]0 0I0 0W0",
        "recv[a:x0:0→1]0 1F0 1I0 send[g:x0:1→0]0 1W0",
    ]


def test_a_receive_moves_up_where_its_value_overtakes_another() -> None:
    """The portal of micro-batch 0 lies on the link before x of micro-batch 1, but is used after it."""
    portal = Edge("skip", 0, (3,), FLOAT)
    graph = StageGraph(
        4,
        (),
        (Edge("x", 0, (1,), FLOAT), portal, Edge("y", 1, (2,), FLOAT), Edge("z", 2, (3,), FLOAT)),
    )
    programs = lower(Schedule.from_text("0F0 0F1 2F0 2F1\n1F0 1F1 3F0 3F1"), graph)
    assert _texts(programs)[1] == (
        "recv[a:x:0→1]0 1F0 send[a:y:1→2]0 "
        "recv[a:skip:0→3]0 recv[a:x:0→1]1 1F1 send[a:y:1→2]1 "
        "recv[a:skip:0→3]1 recv[a:z:2→3]0 3F0 recv[a:z:2→3]1 3F1"
    )


@given(stage_graphs(stages=6), counts())
def test_transfers_are_complete_and_in_order(graph: StageGraph, at: tuple[int, int, int]) -> None:
    ranks, micro_batches = min(at[1], 6), at[2]
    placement = Placement(tuple(s % ranks for s in range(6)))
    schedule = one_f_one_b(6, ranks, micro_batches)
    programs = lower(schedule, graph)
    links: dict[object, dict[Direction, list[object]]] = defaultdict(lambda: defaultdict(list))
    for program in programs:
        for action in program.actions:
            if isinstance(action, Transfer):
                source, target = placement.rank_of(action.source), placement.rank_of(action.target)
                assert source != target
                assert program.rank == (source if action.direction is Direction.SEND else target)
                what = (action.payload, action.value, action.source, action.target)
                links[source, target][action.direction].append((*what, action.micro_batch))
    for link in links.values():
        assert link[Direction.SEND] == link[Direction.RECV]
    computes = [tuple(a for a in p.actions if isinstance(a, Compute)) for p in programs]
    assert tuple(computes) == schedule.ranks
    crossing = [
        (edge, reader)
        for edge in graph.edges
        for reader in edge.consumers
        if placement.rank_of(edge.producer) != placement.rank_of(reader)
    ]
    sent = [
        what
        for link in links.values()
        for what in link[Direction.SEND]
        if what[0] is Payload.ACTIVATION  # type: ignore[index]
    ]
    assert len(sent) == len(crossing) * micro_batches


@given(stage_graphs(stages=5))
def test_values_arrive_before_their_use(graph: StageGraph) -> None:
    for program in lower(one_f_one_b(5, 3, 4), graph):
        here: set[tuple[Payload, str, int, int]] = set()
        for action in program.actions:
            if isinstance(action, Transfer) and action.direction is Direction.RECV:
                here.add((action.payload, action.value, action.target, action.micro_batch))
            if isinstance(action, Compute) and str(action.kind) == "F":
                for edge in graph.reads(action.stage):
                    if edge.producer != HOST and edge.producer % 3 != action.stage % 3:
                        key = (Payload.ACTIVATION, edge.value, action.stage, action.micro_batch)
                        assert key in here


def test_a_schedule_on_other_ranks_than_placed_is_refused() -> None:
    with pytest.raises(ScheduleError, match="rank 0, position 0: 0F0: stage 0 is placed on rank 1"):
        lower(gpipe(2, 2, 1), linear(2), Placement((1, 0)))


def test_a_graph_per_micro_batch() -> None:
    """Micro-batch 1 hands over another value, and nothing that a gradient comes back for."""
    graphs = [
        StageGraph(2, (), (Edge("x", 0, (1,), FLOAT),)),
        StageGraph(2, (), (Edge("mask", 0, (1,), MASK),)),
    ]
    schedule = Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1")
    assert _texts(lower(schedule, graphs)) == [
        "0F0 send[a:x:0→1]0 0F1 send[a:mask:0→1]1 recv[g:x:1→0]0 0B0 0B1",
        "recv[a:x:0→1]0 1F0 recv[a:mask:0→1]1 1F1 1B0 send[g:x:1→0]0 1B1",
    ]
    with pytest.raises(ScheduleError, match="1 stage graphs for 2 micro-batches"):
        lower(schedule, graphs[:1])


def test_a_cell_receives_before_and_sends_after_all_its_actions() -> None:
    schedule = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1B0 1F1 1B1")
    assert _texts(lower(schedule, linear(2)))[0] == (
        "0F0 send[a:x0:0→1]0 recv[g:x0:1→0]0 0F1 0B0 send[a:x0:0→1]1 recv[g:x0:1→0]1 0B1"
    )


def test_updates_and_recomputations_transfer_nothing() -> None:
    schedule = Schedule.from_text("0F0 0R0 0B0 0U\n1F0 1R0 1I0 1W0 1U")
    assert _texts(lower(schedule, linear(2))) == [
        "0F0 send[a:x0:0→1]0 0R0 recv[g:x0:1→0]0 0B0 0U",
        "recv[a:x0:0→1]0 1F0 1R0 1I0 send[g:x0:1→0]0 1W0 1U",
    ]


def test_replicas_transfer_in_opposite_directions() -> None:
    schedule = Schedule.from_text("0F0 1F1 1B1 0B0\n0F1 1F0 1B0 0B1", replicas=2)
    assert _texts(lower(schedule, linear(2))) == [
        "0F0 send[a:x0:0→1]0 recv[a:x0:0→1]1 1F1 1B1 send[g:x0:1→0]1 recv[g:x0:1→0]0 0B0",
        "0F1 send[a:x0:0→1]1 recv[a:x0:0→1]0 1F0 1B0 send[g:x0:1→0]0 recv[g:x0:1→0]1 0B1",
    ]
