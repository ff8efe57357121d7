from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Kind
from fxpipe.ir.cost import StageCost
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.planner.search.cuts import cuts_of, merged
from fxpipe.planner.search.problem import Problem
from fxpipe.schedules.linear import linear
from tests.unit.planner.search.problems import problems

SHARE = StageCost(4.0, 8.0, 2.0, saved_bytes=8, parameter_bytes=16, weight_bytes=4, input_bytes=3)


def test_finer_cuts_divide_and_coarser_ones_merge() -> None:
    cuts = cuts_of([SHARE] * 4, None, ranks=2, stages_per_rank=(1, 2, 4))
    assert cuts.unit == 1
    merge, given_, divide = cuts.cuts
    assert given_.costs == (SHARE,) * 4
    assert merge.costs == (StageCost(8.0, 16.0, 4.0, 16, 32, 8, 3, recompute=8.0),) * 2
    assert divide.costs == (StageCost(2.0, 4.0, 1.0, 4, 8, 2, 3),) * 8
    assert [cut.graph.num_stages for cut in cuts.cuts] == [2, 4, 8]


def test_bytes_that_do_not_divide_are_counted_in_parts() -> None:
    cuts = cuts_of([StageCost(1, 2, 1, saved_bytes=3)] * 2, None, 2, (1, 2, 4))
    assert cuts.unit == 4
    assert [cut.costs[0].saved_bytes for cut in cuts.cuts] == [12, 6, 3]


def test_other_numbers_of_stages_are_taken_as_they_are() -> None:
    cuts = cuts_of([SHARE] * 5, None, 2, (1, 2))
    assert [cut.num_stages for cut in cuts.cuts] == [5]


def test_a_cut_for_every_number() -> None:
    asked = []

    def costs(stages: int) -> list[StageCost]:
        asked.append(stages)
        return [SHARE] * stages

    cuts = cuts_of(costs, linear, 3, (2, 1))
    assert asked == [3, 6]
    assert [cut.num_stages for cut in cuts.cuts] == [3, 6]


def test_what_a_stage_reads_is_its_input() -> None:
    graph = linear(2, nbytes=100)
    cut = cuts_of([StageCost(1, 2, saved_bytes=500), SHARE], graph, 2, (1,)).cuts[0]
    assert [cost.input_bytes for cost in cut.costs] == [100, 3]


def test_graphs_are_not_divided() -> None:
    assert len(cuts_of([SHARE] * 2, linear(2), 2, (1, 2, 4)).cuts) == 1


def test_a_merged_graph_keeps_what_crosses() -> None:
    spec = TensorSpec((10,), "float32", True)
    edges = (
        Edge("x0", 0, (1,), spec),
        Edge("x1", 1, (2,), spec),
        Edge("x2", 2, (3,), spec),
        Edge("skip", 0, (1, 3), spec),
    )
    graph = StageGraph(4, (Edge("x", HOST, (0, 3), spec),), edges, ("x3",))
    cut = merged(cuts_of([SHARE] * 4, graph, 2, (2,)).cuts[0], 2)
    assert cut.graph.edges == (Edge("x1", 0, (1,), spec), Edge("skip", 0, (1,), spec))
    assert cut.graph.inputs == (Edge("x", HOST, (0, 1), spec),)
    assert [cost.input_bytes for cost in cut.costs] == [3, 3 + 40 + 40]


@given(problems())
def test_merging_everything_is_the_whole_model(problem: Problem) -> None:
    cut = merged(problem.cut, problem.cut.num_stages)
    assert cut.graph.edges == ()
    for kind in Kind:
        assert cut.costs[0].seconds(kind) == sum(cost.seconds(kind) for cost in problem.cut.costs)


@pytest.mark.parametrize(
    ("costs", "graph", "ranks", "each", "message"),
    [
        ([SHARE], None, 2, (1,), "2 ranks for 1 stages"),
        ([SHARE] * 2, linear(3), 2, (1,), "costs of 2 stages and a graph of 3"),
        ([SHARE] * 2, linear, 2, (1,), "costs for one cut only"),
        (lambda stages: [SHARE] * stages, linear(2), 2, (1,), "the graph of one cut only"),
        (lambda stages: [SHARE], None, 2, (1,), "costs of 1 stages where 2 were asked for"),
        (lambda stages: [SHARE] * stages, None, 2, (), "nothing to try"),
        ([], None, 2, (1,), "2 ranks for 0 stages"),
    ],
)
def test_what_does_not_fit_together(
    costs: object, graph: object, ranks: int, each: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        cuts_of(costs, graph, ranks, each)  # type: ignore[arg-type]
