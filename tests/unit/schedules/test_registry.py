from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.check import check
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.linear import linear
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES, resolve
from tests.unit.ir.strategies import counts, stage_graphs

ALL = pytest.mark.parametrize("name", sorted(SCHEDULES))
EVEN_RANKS = {"chimera", "dualpipe"}
"""Schedules whose two directions mirror each other."""


def _made(name: str, at: tuple[int, int, int]) -> Schedule | None:
    """The schedule; None where it is refused by name, as it should be."""
    if name in EVEN_RANKS and at[1] % 2:
        with pytest.raises(UnsupportedCountsError, match=f"'{name}'.*got {at[1]}"):
            SCHEDULES[name](*at)
        return None
    return SCHEDULES[name](*at)


@ALL
@settings(max_examples=50)
@given(counts())
def test_every_schedule_is_legal_at_all_counts(name: str, at: tuple[int, int, int]) -> None:
    schedule = _made(name, at)
    if schedule is not None:
        check(schedule, linear(at[0]))
        assert schedule.name == name
        assert (schedule.num_stages, schedule.num_ranks, schedule.num_micro_batches) == at


@ALL
@settings(max_examples=8)
@given(stage_graphs(stages=6))
def test_every_schedule_runs_on_every_stage_graph(name: str, graph: StageGraph) -> None:
    """More of them are in `tests.properties.test_schedules`."""
    for ranks in (1, 2, 3, 4, 6):
        schedule = _made(name, (6, ranks, 5))
        if schedule is not None:
            check(schedule, graph)
            check_programs(lower(schedule, graph))


@ALL
@settings(max_examples=50)
@given(counts())
def test_every_stage_ascends_in_micro_batches(name: str, at: tuple[int, int, int]) -> None:
    """Gradients are summed in the order of a loop over the micro-batches only if backwards ascend."""
    schedule = _made(name, at)
    assert schedule is None or schedule.ascends


@ALL
@pytest.mark.parametrize("at", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 3, 4)])
def test_impossible_counts_are_refused(name: str, at: tuple[int, int, int]) -> None:
    with pytest.raises(ScheduleError):
        SCHEDULES[name](*at)


def test_a_name_a_generator_and_a_schedule_resolve_to_the_same() -> None:
    fixed = gpipe(2, 2, 3)
    assert resolve("gpipe", 2, 2, 3) == resolve(gpipe, 2, 2, 3) == resolve(fixed, 2, 2, 3) == fixed


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ScheduleError, match=r"'pipe'; known are 1f1b, chimera, dualpipe, "):
        resolve("pipe", 2, 2, 2)


def test_a_fixed_schedule_fits_its_own_counts_only() -> None:
    fixed = Schedule.from_text("0F0 0B0", "mine")
    with pytest.raises(ScheduleError, match=r"'mine' has 1 stages instead of 2, 1 ranks instead"):
        resolve(fixed, 2, 2, 1)
    with pytest.raises(ScheduleError, match="1 micro-batches instead of 4"):
        resolve(lambda stages, ranks, micro_batches: fixed, 1, 1, 4)


def test_what_goes_beyond_the_counts_is_named() -> None:
    fixed = Schedule.from_text("0F0 0F2\n2F0 2F2", "mine")
    with pytest.raises(ScheduleError) as refused:
        resolve(fixed, 2, 2, 2)
    assert str(refused.value) == (
        "schedule 'mine' has 3 stages instead of 2 (rank 1, position 0: 2F0), "
        "3 micro-batches instead of 2 (rank 0, position 1: 0F2)"
    )
    with pytest.raises(ScheduleError, match="schedule 'mine' is empty"):
        resolve(Schedule((), "mine"), 1, 1, 1)


def test_a_generator_must_return_a_schedule() -> None:
    with pytest.raises(ScheduleError, match="returned a list, not a Schedule"):
        resolve(lambda *counts: [], 1, 1, 1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("wrong", [lambda text: text, lambda stages, ranks, m, *, costs: None])
def test_a_function_of_something_else_is_told_what_it_is_called_with(wrong: Any) -> None:
    told = r"lambda> makes no schedule: .* numbers of stages, ranks and micro-batches, here \(2, 2, 3\)"
    with pytest.raises(ScheduleError, match=told):
        resolve(wrong, 2, 2, 3)


def test_what_a_function_raises_is_its_own_business() -> None:
    def broken(stages: int, ranks: int, micro_batches: int) -> Schedule:
        raise TypeError("of the test")

    with pytest.raises(TypeError, match="of the test"):
        resolve(broken, 2, 2, 3)


def test_what_makes_no_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="3 is no name of a schedule"):
        resolve(3, 2, 2, 3)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="number of micro-batches must be a whole number"):
        resolve("1f1b", 2, 2, 3.0)  # type: ignore[arg-type]
