"""Laws of partitioners over arbitrary cost sequences."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.ir.capture import Capture
from fxpipe.partitioners.chain import bottleneck, solve, stage_seconds
from fxpipe.partitioners.check import check_plan
from fxpipe.partitioners.partition import partition
from fxpipe.partitioners.rows import Chain
from tests.block_partition import block_partition, heaviest_block
from tests.captures import chain_capture, costs_of
from tests.strategies import costs

CHAINS: dict[int, Capture] = {}


def chain(size: int) -> Capture:
    return CHAINS.setdefault(size, chain_capture(size))


@st.composite
def problems(draw: st.DrawFn, max_size: int) -> tuple[list[float], int]:
    sequence = draw(costs(max_size=max_size))
    return sequence, draw(st.integers(1, min(8, len(sequence))))


@given(problems(max_size=40))
def test_never_worse_than_block_partition(problem: tuple[list[float], int]) -> None:
    sequence, stages = problem
    peer = heaviest_block(sequence, block_partition(sequence, stages))
    cuts = solve(Chain(sequence), stages)
    assert cuts is not None
    assert bottleneck(Chain(sequence), cuts) <= peer * (1 + 1e-9)


@given(problems(max_size=30))
def test_plans_of_captures_are_never_worse_either(problem: tuple[list[float], int]) -> None:
    sequence, stages = problem
    capture = chain(len(sequence))
    profile = costs_of(capture, sequence)
    plan = partition(capture, profile, stages)
    check_plan(capture, plan)
    over = [profile.over(plan.nodes_of(stage)) for stage in range(stages)]
    ours = max(cost.forward + cost.backward for cost in over)
    peer = heaviest_block(sequence, block_partition(sequence, stages))
    assert (
        ours <= peer * (1 + 1e-9) + 1e-9
    )  # a nanosecond for the transfers, which the peer ignores


@given(problems(max_size=9))
def test_no_choice_of_cuts_is_lighter(problem: tuple[list[float], int]) -> None:
    sequence, stages = problem
    problem_chain = Chain(sequence)
    cuts = solve(problem_chain, stages)
    assert cuts is not None
    choices = combinations(range(1, len(sequence)), stages - 1)
    best = min(bottleneck(problem_chain, choice) for choice in choices)
    assert bottleneck(problem_chain, cuts) == pytest.approx(best)


@given(problems(max_size=25), st.data())
def test_stages_are_runs_that_cover_the_sequence_once(
    problem: tuple[list[float], int], data: st.DataObject
) -> None:
    sequence, _ = problem
    places = sorted(data.draw(st.sets(st.integers(1, max(1, len(sequence) - 1)))))
    places = [place for place in places if place < len(sequence)]
    stages = data.draw(st.integers(1, len(places) + 1))
    some = Chain(sequence, cuts=places)
    cuts = solve(some, stages)
    assert cuts is not None
    assert len(cuts) == stages - 1
    assert set(cuts) <= set(places)
    assert all(a < b for a, b in pairwise(cuts))
    assert sum(stage_seconds(some, cuts)) == pytest.approx(sum(sequence))
    assert bottleneck(some, cuts) >= max(sum(sequence) / stages, max(sequence)) - 1e-6


@given(problems(max_size=25))
def test_more_stages_are_never_heavier(problem: tuple[list[float], int]) -> None:
    sequence, stages = problem
    few, many = solve(Chain(sequence), max(1, stages - 1)), solve(Chain(sequence), stages)
    assert few is not None
    assert many is not None
    assert bottleneck(Chain(sequence), many) <= bottleneck(Chain(sequence), few) * (1 + 1e-9)
