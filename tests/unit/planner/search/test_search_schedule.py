from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

import fxpipe
from fxpipe import Cluster, Placement, SearchResult, StageCost
from fxpipe.errors import ScheduleError
from fxpipe.schedules.check import check
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.memory import check_memory

UNIT = StageCost(1.0, 2.0, 1.0, saved_bytes=1)
"""F = I = W = 1 of a rank; memory in activations of a rank."""
UNEQUAL = StageCost(3.0, 6.0, 2.0, saved_bytes=1)
UNLIKE = [
    StageCost(f, i + w, w, saved_bytes=1)
    for f, i, w in ((1, 1, 1), (2, 2, 1), (1.5, 1.5, 1), (1, 1.25, 0.5))
]


def _search(costs: Any, limit: int | Sequence[int] | None, **options: Any) -> SearchResult:
    """A search that no clock ends, held against every check."""
    defaults: dict[str, Any] = {"steps": 150, "seconds": 1000.0, "progress": False}
    found = fxpipe.search_schedule(costs, limit, **(defaults | options))
    check(found.schedule, found.graph)
    programs = fxpipe.lower(found.schedule, found.graph)
    check_programs(programs)
    limits = [int(min(limit * found.unit, 2**62)) for limit in found.limits]
    check_memory(programs, found.costs, limits)
    timeline = fxpipe.simulate(programs, found.costs, found.cluster, found.graph)
    assert timeline.makespan == pytest.approx(found.makespan)
    assert tuple(peak / found.unit for peak in timeline.peak_bytes) == found.peaks
    assert found.bound <= found.makespan
    assert found.gap >= 0.0
    best = found.best_named
    assert best is None or found.makespan <= best.makespan
    return found


@pytest.mark.parametrize("limit", [8, 12, 16, None])
def test_equal_ranks_meet_the_bound(limit: int | None) -> None:
    """1F1B takes 69, ZB-H1 55, ZB-V 51.5."""
    found = _search([UNIT] * 8, limit, ranks=8, micro_batches=16)
    assert (found.makespan, found.bound, found.gap) == (49.75, 49.75, 0.0)
    assert found.stages_per_rank == 4


@pytest.mark.parametrize(("limit", "named", "stages"), [(4, 75.75, (2, 4)), (3, 86.5, (2,))])
def test_unequal_kinds(limit: int, named: float, stages: tuple[int, ...]) -> None:
    """Less than interleaved zero bubble and V-Half, the best with a name, take."""
    found = _search([UNEQUAL] * 4, limit, ranks=4, micro_batches=8, steps=1, stages_per_rank=stages)
    assert found.best_named is not None
    assert found.makespan < named == found.best_named.makespan


def test_unlike_stages() -> None:
    """ZB-H2 takes 31 with one stage per rank, which is the bound; finer cuts share the work."""
    one = _search(UNLIKE, 7, ranks=4, micro_batches=6, stages_per_rank=(1,))
    assert one.makespan == one.bound == 31.0
    assert _search(UNLIKE, 4, ranks=4, micro_batches=6).makespan < 26.0


def test_short_memory_is_for_patterns() -> None:
    """V-Min takes 61.5; no schedule with a name keeps less."""
    found = _search([UNIT] * 8, 4, ranks=8, micro_batches=16, steps=1, stages_per_rank=(2,))
    assert found.makespan == 59.5
    assert max(found.peaks) == 4


@pytest.mark.parametrize(
    ("cost", "ranks", "limit", "named", "most"),
    [
        (UNIT, 4, 2, 29.5, 28.75),  # V-Min
        (UNEQUAL, 4, 2, 113.0, 103.0),
        pytest.param(UNIT, 8, 5, 56.5, 56.0, marks=pytest.mark.slow),  # V-Half
        pytest.param(UNEQUAL, 8, 4, 235.5, 216.0, marks=pytest.mark.slow),
    ],
)
def test_short_memory_is_for_periods(
    cost: StageCost, ranks: int, limit: int, named: float, most: float
) -> None:
    """Orders that repeat, made for the costs at hand, where the best with a name is V-Min or V-Half."""
    found = _search(
        [cost] * ranks, limit, ranks=ranks, micro_batches=2 * ranks, steps=1, stages_per_rank=(2, 4)
    )
    assert found.best_named is not None
    assert found.best_named.makespan == named
    assert found.makespan <= most


def test_recomputation_where_nothing_else_fits() -> None:
    cost = StageCost(1.0, 2.0, 1.0, saved_bytes=10, input_bytes=1)
    options = {"ranks": 4, "micro_batches": 6, "stages_per_rank": (1,)}
    found = _search([cost] * 4, 14, **options)
    assert found.recomputed
    assert "R" in str(found.schedule)
    without = _search([cost] * 4, 14, recompute=False, **options)
    assert not without.recomputed
    assert found.makespan < without.makespan


def test_whole_backwards_if_they_must_be() -> None:
    found = _search([UNIT] * 4, 4, ranks=4, micro_batches=8, split_backward=False)
    assert not found.schedule.splits_backward
    assert found.bound == 26.25


def test_two_copies_only_if_wanted() -> None:
    options = {"ranks": 4, "micro_batches": 8, "stages_per_rank": (1,)}
    assert _search([UNIT] * 4, None, **options).schedule.replicas == 1
    both = _search([UNIT] * 4, None, replicas=True, **options)
    assert both.schedule.replicas == 2
    assert both.makespan <= 26.0  # DualPipe


def test_limits_of_each_rank() -> None:
    found = _search([UNIT] * 2, [2, 1], ranks=2, micro_batches=4, stages_per_rank=(1,))
    assert found.peaks == (2.0, 1.0)


def test_placements_of_your_own_and_slow_links() -> None:
    mine = Placement((1, 0, 0, 1, 1, 0))
    cluster = Cluster(2, latency=0.25)
    options = {"ranks": 2, "micro_batches": 4, "placements": (mine,), "cluster": cluster}
    found = _search([UNIT] * 6, None, stages_per_rank=(3,), **options)
    assert {one.placement for one in found.tried} == {"own"}
    assert found.placement == mine
    assert found.best_named is None


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize(
    ("wish", "placement"),
    [
        ("loop", Placement.loop(2, 2)),
        ("fold", Placement.fold(2)),
        (Placement.fold(2), Placement.fold(2)),
        (Placement((0, 0, 1, 1)), Placement((0, 0, 1, 1))),
    ],
)
def test_the_result_has_a_placement_that_was_asked_for(
    wish: Any, placement: Placement, limit: int | None
) -> None:
    options = {"ranks": 2, "micro_batches": 3, "stages_per_rank": 2, "steps": 1}
    found = _search([UNIT] * 4, limit, placements=[wish], **options)
    assert found.placement == placement
    assert len({one.placement for one in found.tried}) == 1
    if placement.ranks != (0, 0, 1, 1):
        assert found.best_named is not None


def test_of_two_copies_the_first_one_stands_as_asked_for() -> None:
    options: dict[str, Any] = {"ranks": 2, "micro_batches": 4, "replicas": True, "steps": 1}
    found = _search([UNIT] * 2, None, stages_per_rank=1, placements=("loop",), **options)
    assert "chimera" in {one.name for one in found.tried}
    found = _search([UNIT] * 4, None, stages_per_rank=2, placements=("fold",), **options)
    assert "chimera" not in {one.name for one in found.tried}


@pytest.mark.parametrize(
    ("chunks", "ranks", "micro_batches"), [(3, 3, 3), (3, 3, 5), (3, 4, 6), ((3, 5), 3, 4)]
)
def test_rounding_puts_nothing_above_the_best_with_a_name_or_below_the_bound(
    chunks: Any, ranks: int, micro_batches: int
) -> None:
    """Thirds and fifths of seconds, added in another order."""
    options = {"ranks": ranks, "micro_batches": micro_batches, "stages_per_rank": chunks}
    _search([UNIT] * ranks, None, **options)


def test_ranks_that_slow_each_other_down() -> None:
    cluster = Cluster(2, speeds=(1.0, 0.5))
    found = _search([UNIT] * 2, None, ranks=2, micro_batches=3, cluster=cluster, steps=5)
    assert found.makespan >= 18.0


def test_the_same_arguments_give_the_same_schedule() -> None:
    options = {"ranks": 3, "micro_batches": 5, "seed": 5, "stages_per_rank": (1, 2)}
    first, second = (_search([UNEQUAL] * 3, 2, **options) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.tried == second.tried


def test_no_time_is_enough_for_the_schedules_with_names() -> None:
    found = _search([UNIT] * 4, None, ranks=4, micro_batches=8, seconds=0.0)
    assert {"1f1b", "zb-v", "v-min"} <= {one.name for one in found.tried}


def test_it_says_what_it_found() -> None:
    text = str(_search([UNIT] * 8, 8, ranks=8, micro_batches=16))
    assert "32 stages on 8 ranks, 49.75 s, 0.0% above the bound of 49.75 s" in text
    assert "zb-v" in text


def test_too_little_memory_is_said() -> None:
    with pytest.raises(ScheduleError, match=r"keeps to the limit.*keeps [0-9.]+ bytes"):
        _search([UNIT] * 2, 0, ranks=2, micro_batches=2)
    with pytest.raises(ScheduleError, match="memory limits of 3 ranks for 2"):
        _search([UNIT] * 2, [1, 1, 1], ranks=2, micro_batches=2)
    with pytest.raises(ScheduleError, match="at least one of its micro-batches"):
        _search([UNIT] * 2, None, ranks=2, micro_batches=0)


def test_a_step_of_nothing() -> None:
    found = _search([StageCost(0.0, 0.0)] * 2, None, ranks=2, micro_batches=2)
    assert (found.makespan, found.gap) == (0.0, 0.0)
    assert not math.isnan(found.gap)


UNEVEN = [
    StageCost(f, 2 * f, f * 0.8, saved_bytes=int(100 * f), input_bytes=10)
    for f in (1, 3, 0.5, 2, 1, 1.5, 0.2, 1)
]


def test_the_most_frugal_order_is_found_and_named() -> None:
    """While the second stage has its backward, later ones of its rank are done: 300 bytes are enough."""
    options = {"ranks": 4, "micro_batches": 3, "stages_per_rank": (2,), "steps": 1}
    assert max(_search(UNEVEN, 300, **options).peaks) == 300
    with pytest.raises(ScheduleError, match=r"recomputed, keeps 300 bytes on .*; allow more$"):
        _search(UNEVEN, 299, **options)


def test_what_one_micro_batch_keeps_is_enough() -> None:
    options = {"ranks": 2, "micro_batches": 4, "steps": 1, "recompute": False}
    assert _search([UNIT] * 2, 1, **options).peaks == (1.0, 1.0)
    with pytest.raises(
        ScheduleError, match=r"keeps 1 bytes on rank [01], which may keep 0; allow more$"
    ):
        _search([UNIT] * 2, 0, **options)
    with pytest.raises(ScheduleError, match="keeps 1 bytes on rank 1, which may keep 0"):
        _search([UNIT] * 2, [1, 0], **options)
    with pytest.raises(ScheduleError, match="a memory limit cannot be negative, got -1"):
        _search([UNIT] * 2, -1, **options)


def test_large_steps_keep_to_the_time() -> None:
    """Of a step this large, schedules with names have to be in time, too: of the first cut, one is."""
    found = _search([UNIT] * 4, 4, ranks=4, micro_batches=600, seconds=0.0)
    assert {one.stages for one in found.tried if one.named} == {4}
    assert len(found.tried) <= 3


def test_the_bound_knows_that_ranks_slow_each_other_down() -> None:
    cluster = Cluster(4, speeds=(1.0, 1.0, 0.66, 0.5))
    found = _search([UNIT] * 4, 3, ranks=4, micro_batches=4, cluster=cluster, steps=1, seconds=0.0)
    assert found.bound >= 24.0
    assert found.gap < 0.1


def test_limits_may_be_fractions_and_infinite() -> None:
    options = {"ranks": 2, "micro_batches": 4, "stages_per_rank": (1, 2), "steps": 1}
    assert max(_search([UNIT] * 2, 1.5, **options).peaks) <= 1.5
    assert _search([UNIT] * 2, math.inf, **options).limits == (math.inf, math.inf)
    with pytest.raises(ScheduleError, match="a memory limit cannot be negative, got nan"):
        _search([UNIT] * 2, math.nan, **options)


def test_the_memory_of_a_cluster_is_a_limit() -> None:
    options: dict[str, Any] = {"ranks": 2, "micro_batches": 4, "stages_per_rank": (1,), "steps": 1}
    cluster = Cluster(2, memory=1)
    assert _search([UNIT] * 2, None, cluster=cluster, **options).peaks == (1.0, 1.0)
    assert _search([UNIT] * 2, 2, cluster=cluster, **options).limits == (2.0, 2.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"placements": ("spiral",)}, "no placement 'spiral'; known are 'loop', 'fold'"),
        (
            {"placements": (Placement((0, 1, 2, 0)),)},
            "puts stage 2 on rank 2, and there are 2 ranks",
        ),
        ({"placements": (Placement((1, 1)),)}, "leaves rank 0 of 2 without a stage"),
        ({"cluster": Cluster(1)}, "a cluster of 1 ranks for 2"),
        ({"placements": ()}, r"placements is a list of those that the result may have, got \(\)"),
        ({"placements": "fold"}, "placements is a list .* got 'fold'"),
        (
            {"placements": (Placement((0, 1, 0)),), "stages_per_rank": (1, 2)},
            "no cut can be placed as asked, by a placement of 3 stages: the cuts have 2, 4 stages",
        ),
    ],
)
def test_other_placements_and_ranks_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        _search([UNIT] * 2, None, ranks=2, micro_batches=2, **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stages_per_rank": ()}, r"stages_per_rank is a number of stages, .* got \(\)"),
        ({"stages_per_rank": 0}, "got 0"),
        ({"stages_per_rank": (2, -1)}, r"got \(2, -1\)"),
        ({"stages_per_rank": 2.0}, r"got 2\.0"),
        ({"stages_per_rank": "12"}, "got '12'"),
        ({"stages_per_rank": None}, "got None"),
        ({"seconds": -1}, "seconds is the time to search for, 0 or more; got -1"),
        ({"seconds": math.nan}, "seconds is .* got nan"),
        ({"seconds": "8"}, "seconds is .* got '8'"),
        ({"steps": -1}, "steps is a number of moves, 0 or more; got -1"),
        ({"steps": 1.5}, r"steps is .* got 1\.5"),
        ({"micro_batches": 4.0}, r"number of micro-batches must be a whole number, got 4\.0"),
        ({"ranks": "2"}, "number of ranks must be a whole number, got '2'"),
        ({"ranks": 0}, "at least one of its ranks, got 0"),
    ],
)
def test_what_nobody_can_do_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        _search([UNIT] * 2, None, **{"ranks": 2, "micro_batches": 2, **wrong})
