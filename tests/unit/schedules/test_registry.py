from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import BACKWARDS, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.check import check
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.linear import linear
from fxpipe.schedules.links import Sends, check_links
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES, resolve
from tests.unit.ir.strategies import counts, stage_graphs

ALL = pytest.mark.parametrize("name", sorted(SCHEDULES))


@ALL
@given(counts())
def test_every_schedule_is_legal_at_all_counts(name: str, at: tuple[int, int, int]) -> None:
    schedule = SCHEDULES[name](*at)
    check(schedule, linear(at[0]))
    assert schedule.name == name
    assert schedule.placement.ranks == tuple(stage % at[1] for stage in range(at[0]))


@ALL
@given(stage_graphs(stages=6))
def test_every_schedule_runs_on_every_stage_graph(name: str, graph: object) -> None:
    for ranks in (1, 2, 3, 4, 6):
        schedule = SCHEDULES[name](6, ranks, 5)
        check(schedule, graph)  # type: ignore[arg-type]
        programs = lower(schedule, graph)  # type: ignore[arg-type]
        for sends in Sends:
            check_links(programs, sends)


@ALL
@given(counts())
def test_every_stage_ascends_in_micro_batches(name: str, at: tuple[int, int, int]) -> None:
    """Gradients are summed in the order of a loop over the micro-batches only if backwards ascend."""
    for actions in SCHEDULES[name](*at).ranks:
        for kinds in ((Kind.FORWARD,), BACKWARDS):
            for stage in range(at[0]):
                order = [a.micro_batch for a in actions if a.stage == stage and a.kind in kinds]
                assert order == sorted(order)


@ALL
@pytest.mark.parametrize("at", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 3, 4)])
def test_impossible_counts_are_refused(name: str, at: tuple[int, int, int]) -> None:
    with pytest.raises(ScheduleError):
        SCHEDULES[name](*at)


def test_a_name_a_generator_and_a_schedule_resolve_to_the_same() -> None:
    fixed = gpipe(2, 2, 3)
    assert resolve("gpipe", 2, 2, 3) == resolve(gpipe, 2, 2, 3) == resolve(fixed, 2, 2, 3) == fixed


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ScheduleError, match=r"'pipe'; known are 1f1b, forward, gpipe"):
        resolve("pipe", 2, 2, 2)


def test_a_fixed_schedule_fits_its_own_counts_only() -> None:
    fixed = Schedule.from_text("0F0 0B0", "mine")
    with pytest.raises(ScheduleError, match=r"'mine' has 1 stages instead of 2, 1 ranks instead"):
        resolve(fixed, 2, 2, 1)
    with pytest.raises(ScheduleError, match="1 micro-batches instead of 4"):
        resolve(lambda stages, ranks, micro_batches: fixed, 1, 1, 4)


def test_a_generator_must_return_a_schedule() -> None:
    with pytest.raises(ScheduleError, match="returned a list, not a Schedule"):
        resolve(lambda *counts: [], 1, 1, 1)  # type: ignore[arg-type, return-value]
