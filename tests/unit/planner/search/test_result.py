from __future__ import annotations

from fxpipe.ir.cluster import Cluster
from fxpipe.planner.search.result import SearchResult, Tried, table
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.planner.search.problems import equal


def _result(bound: float) -> SearchResult:
    problem = equal(2, 2, 4)
    tried = (
        Tried("list", 4, "loop", 0, 13.0, 8.0, True, False),
        Tried("1f1b", 4, "loop", 0, 12.5, 99.0, False, True),
        Tried("zb-v", 4, "fold", 0, 14.0, 8.0, True, True),
    )
    return SearchResult(
        schedule=SCHEDULES["zb-v"](4, 2, 4),
        costs=problem.cut.costs,
        graph=problem.cut.graph,
        cluster=Cluster(2),
        makespan=13.0,
        bound=bound,
        peaks=(8.0, 8.0),
        limits=(8.0, 8.0),
        recomputed=frozenset(),
        tried=tried,
    )


def test_what_follows_from_it() -> None:
    result = _result(12.5)
    assert result.gap == 13.0 / 12.5 - 1.0
    assert result.stages_per_rank == 2
    assert result.placement.ranks == (0, 1, 1, 0)
    assert result.timeline.makespan == 12.5
    best = result.best_named
    assert best is not None
    assert best.name == "zb-v"  # 1F1B keeps too much


def test_a_bound_of_nothing_leaves_no_gap() -> None:
    assert _result(0.0).gap == 0.0


def test_as_text_without_what_does_not_fit() -> None:
    text = str(_result(12.5))
    assert "4.0% above the bound of 12.5 s; best with a name: zb-v, 14 s" in text
    assert "1f1b" not in text
    assert "list" in table(_result(1.0).tried[:1])
