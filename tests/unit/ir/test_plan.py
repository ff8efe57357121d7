from __future__ import annotations

import pytest

from fxpipe.ir.plan import PartitionPlan, Placement


def test_nodes_of_a_stage_keep_their_order() -> None:
    plan = PartitionPlan({"b": 0, "a": 0, "c": 1}, "abc", ("c",))
    assert plan.num_stages == 2
    assert plan.nodes_of(0) == ("b", "a")
    assert str(plan) == "PartitionPlan: 2 stages of [2, 1] nodes, cut before c"


def test_stages_without_gaps() -> None:
    with pytest.raises(ValueError, match=r"without gaps, got \[0, 2\]"):
        PartitionPlan({"a": 0, "b": 2}, "abc")


def test_loop_placement() -> None:
    placement = Placement.loop(2, 3)
    assert placement.ranks == (0, 1, 0, 1, 0, 1)
    assert placement.stages_of(1) == (1, 3, 5)
    assert placement.rank_of(4) == 0
    assert placement.num_ranks == 2
