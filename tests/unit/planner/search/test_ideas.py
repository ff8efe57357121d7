from __future__ import annotations

import math

from fxpipe.ir.cluster import Cluster
from fxpipe.planner.search.ideas import (
    ListIdea,
    PatternIdea,
    PeriodicIdea,
    deep,
    ideas,
    timely,
    work,
)
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.space import Space
from tests.unit.planner.search.problems import equal


def _space(problem: Problem, split: bool = True) -> Space:
    ranks = len(problem.ranks)
    limits = tuple(problem.limits)
    return Space((problem.cut,), ranks, problem.micro_batches, Cluster(ranks), limits, split)


def test_patterns_are_for_a_v_of_two() -> None:
    for v, fold, some in ((2, True, True), (2, False, False), (4, True, False)):
        problem = equal(4, v, 8, kept=3, fold=fold)
        found = list(ideas(_space(problem), problem))
        assert any(isinstance(idea, PatternIdea) for idea in found) is some


def test_paces_are_for_memory_that_is_short() -> None:
    for kept, some in ((math.inf, False), (3.0, True)):
        problem = equal(4, 1, 8, kept=kept)
        found = list(ideas(_space(problem), problem))
        assert any(isinstance(idea, ListIdea) and idea.pace > 0 for idea in found) is some
        assert any(isinstance(idea, PeriodicIdea) for idea in found) is some


def test_backwards_stay_whole_if_they_must() -> None:
    problem = equal(4, 2, 8, kept=3, fold=True)
    found = list(ideas(_space(problem, split=False), problem))
    assert all(isinstance(idea, ListIdea | PeriodicIdea) and not idea.split for idea in found)


def test_an_idea_is_for_any_number_of_micro_batches() -> None:
    problems = [equal(4, 2, m, kept=3, fold=True) for m in (4, 8)]
    for idea in ideas(_space(problems[0]), problems[0]):
        for problem in problems:
            made = idea(problem)
            if made is not None:
                assert sum(map(len, made.orders)) in (
                    16 * problem.micro_batches,
                    24 * problem.micro_batches,
                )


def test_urgencies() -> None:
    problem = equal(2, m=2)
    assert work(problem) == 3.0
    assert len(deep(problem)) == len(timely(problem)) == len(problem.scorer.tables.seconds)
    starts = timely(problem)
    names = {str(problem.scorer.action(n)): at for n, at in enumerate(starts)}
    assert (names["0F0"], names["1F0"], names["1I0"], names["0I0"]) == (0.0, 1.0, 2.0, 3.0)
    assert (names["0F1"], names["0I1"]) == (3.0, 6.0)
