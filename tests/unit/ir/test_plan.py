from __future__ import annotations

import re
from typing import Any

import pytest

from fxpipe.ir.plan import NOWHERE, PartitionPlan, Placement


def test_nodes_of_a_stage_keep_their_order() -> None:
    plan = PartitionPlan({"b": 0, "a": 0, "c": 1}, "abc", ("c",))
    assert plan.num_stages == 2
    assert plan.nodes_of(0) == ("b", "a")
    assert str(plan) == "PartitionPlan: 2 stages of [2, 1] nodes, cut before c"


def test_idle_stages_count() -> None:
    plan = PartitionPlan({"a": 1}, "abc", ("a", NOWHERE), idle=(0, 2))
    assert plan.num_stages == 3
    assert plan.nodes_of(0) == plan.nodes_of(2) == ()
    assert str(plan) == "PartitionPlan: 3 stages of [0, 1, 0] nodes, cut before a, (nothing)"


def test_stages_without_gaps() -> None:
    with pytest.raises(ValueError, match=r"without gaps, got \[0, 2\]"):
        PartitionPlan({"a": 0, "b": 2}, "abc")


def test_loop_placement() -> None:
    placement = Placement.loop(2, 3)
    assert placement.ranks == (0, 1, 0, 1, 0, 1)
    assert placement.stages_of(1) == (1, 3, 5)
    assert placement.rank_of(4) == 0
    assert placement.num_ranks == 2


def test_any_number_of_stages_in_a_loop() -> None:
    assert Placement.round_robin(5, 3).ranks == (0, 1, 2, 0, 1)


def test_folds_turn_at_both_ends() -> None:
    assert Placement.fold(4).ranks == (0, 1, 2, 3, 3, 2, 1, 0)
    assert Placement.fold(2, 4).ranks == (0, 1, 1, 0, 0, 1, 1, 0)
    assert Placement.fold(3, 1) == Placement.loop(3)


@pytest.mark.parametrize(("ranks", "legs"), [(1, 2), (3, 2), (4, 4), (2, 6)])
def test_a_stage_and_its_mirror_image_share_a_rank(ranks: int, legs: int) -> None:
    where = Placement.fold(ranks, legs).ranks
    assert where == where[::-1]


def test_replicas_are_chosen_by_micro_batch() -> None:
    placement = Placement((0, 1), ((1, 0),), (0, 1, 1))
    assert [placement.rank_of(0, m) for m in range(4)] == [0, 1, 1, 0]
    assert placement.ranks_for(2) == (1, 0)
    assert placement.stages_of(0) == (0, 1)
    assert placement.num_ranks == 2


@pytest.mark.parametrize("wrong", [(0, -1), (0.5, 1), [0, 1], {0: 0, 1: 1}, ("0", "1"), (True, 0)])
def test_a_placement_is_a_tuple_of_ranks(wrong: Any) -> None:
    told = r"a placement is a tuple with the rank of every stage, .* got " + re.escape(repr(wrong))
    with pytest.raises(ValueError, match=told):
        Placement(wrong)
    with pytest.raises(ValueError, match=told):
        Placement((0, 1), (wrong,))


def test_copies_are_of_the_same_stages_and_are_there() -> None:
    with pytest.raises(ValueError, match=r"a copy of 1 stages of 2: \(1,\)"):
        Placement((0, 1), ((1,),))
    with pytest.raises(ValueError, match=r"numbered 0 to 1 here, got copy_of=\(0, 2\)"):
        Placement((0, 1), ((1, 0),), (0, 2))


@pytest.mark.parametrize("make", [Placement.fold, Placement.loop])
@pytest.mark.parametrize("counts", [(0,), (-1, 2), (2, 0), (2, -1), (2.0,)])
def test_there_is_no_placement_of_nothing(make: Any, counts: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"a placement needs .* of 1 or more, got"):
        make(*counts)
