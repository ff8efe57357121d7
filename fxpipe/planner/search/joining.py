"""The two halves of a backward made one again, where that costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fxpipe.ir.action import Kind
from fxpipe.planner.search.space import Candidate

_CLOSE = 1e-12


def joined(candidate: Candidate, is_late: Callable[[], bool] = lambda: False) -> Candidate:
    """The candidate with full backwards in every stage where that makes the step no longer.

    A backward in two halves costs more than the whole on most machines, and nothing here knows how much.
    Halves that follow one another at once become one action, of all micro-batches of a stage or none.

    Args:
        candidate: the order.
        is_late: whether the other stages are to be left as they are.
    """
    problem, name = candidate.problem, f"{candidate.name}, joined"
    for stage in range(problem.cut.num_stages):
        if is_late():
            break
        orders = [_joined(candidate, row, stage) for row in candidate.orders]
        if orders == candidate.orders:
            continue
        score = problem.score(orders)
        limit = candidate.score.makespan * (1.0 + _CLOSE)
        if score.makespan <= limit and problem.fits(score):
            candidate = replace(candidate, name=name, orders=orders, score=score, named=False)
    return candidate


def _joined(candidate: Candidate, row: list[int], stage: int) -> list[int]:
    problem = candidate.problem
    count = problem.micro_batches
    inputs = problem.row(Kind.BACKWARD_INPUT, stage)
    to_weight = problem.row(Kind.BACKWARD_WEIGHT, stage) - inputs
    to_full = problem.row(Kind.BACKWARD, stage) - inputs
    made: list[int] = []
    for number in row:
        if made and inputs <= made[-1] < inputs + count and number == made[-1] + to_weight:
            made[-1] += to_full
        else:
            made.append(number)
    return made
