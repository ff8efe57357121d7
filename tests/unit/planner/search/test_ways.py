from __future__ import annotations

from hypothesis import given

from fxpipe.ir.action import Kind
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.ways import Ways
from fxpipe.simulator.metrics import longest_chain
from tests.unit.planner.search.problems import equal, problems


def test_three_stages() -> None:
    """F F F I I I, a hop of a half between ranks; weight halves after their input halves."""
    ways = Ways(equal(3, hop=0.5))
    forward = [ways.heads[ways.number(Kind.FORWARD, stage)] for stage in range(3)]
    back = [ways.heads[ways.number(Kind.BACKWARD_INPUT, stage)] for stage in range(3)]
    tails = [ways.tails[ways.number(Kind.BACKWARD_INPUT, stage)] for stage in range(3)]
    assert forward == [0.0, 1.5, 3.0]
    assert back == [7.0, 5.5, 4.0]
    assert tails == [1.0, 2.5, 4.0]
    assert [ways.life(stage) for stage in range(3)] == [7.0, 4.0, 1.0]
    assert ways.length == 9.0


def test_recomputation_stands_in_the_way() -> None:
    plain, again = Ways(equal(2)), Ways(equal(2, recomputed=frozenset({1})))
    assert again.length == plain.length + 1.0


@given(problems())
def test_without_links_it_is_the_longest_chain(problem: Problem) -> None:
    if problem.cluster.latency == 0.0:
        for split in (True, False):
            chain = longest_chain(problem.cut.graph, problem.cut.costs, split=split)
            assert abs(Ways(problem, split=split).length - chain) < 1e-9
