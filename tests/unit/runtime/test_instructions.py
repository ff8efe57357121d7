from __future__ import annotations

import pytest

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Compute, Direction, Kind, Payload, Transfer, Update
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.runtime.instructions import COMPUTES, Executable, prepare
from fxpipe.schedules.chimera import chimera
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.insert import with_updates
from fxpipe.schedules.lower import lower
from tests.unit.runtime.stages import chain, runners


def executable(schedule: Schedule, stages: int) -> Executable:
    graph, programs = chain(stages)
    each = runners(graph, programs)
    return prepare(lower(schedule, graph), [each] * schedule.num_micro_batches)


def test_every_action_in_order_with_its_wait() -> None:
    made = executable(gpipe(2, 2, 2), 2)
    assert [str(instruction.action) for instruction in made.ranks[1]] == [
        "recv[a:v0:0→1]0",
        "1F0",
        "recv[a:v0:0→1]1",
        "1F1",
        "1B0",
        "send[g:v0:1→0]0",
        "1B1",
        "send[g:v0:1→0]1",
    ]
    waits = [instruction.receives is not None for instruction in made.ranks[1]]
    assert waits == [True, False, True, False, False, False, False, False]
    assert [instruction.micro_batch for instruction in made.ranks[1]] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert made.micro_batches == 2
    assert made.has_backward


def test_a_route_per_value_reader_and_direction() -> None:
    made = executable(gpipe(3, 3, 4), 3)
    found = {(route.payload, route.value, route.source, route.target) for route in made.routes}
    assert found == {
        (Payload.ACTIVATION, "v0", 0, 1),
        (Payload.ACTIVATION, "v1", 1, 2),
        (Payload.GRADIENT, "v0", 1, 0),
        (Payload.GRADIENT, "v1", 2, 1),
    }
    assert all(route.source_rank != route.target_rank for route in made.routes)


def test_stages_of_one_rank_need_no_route() -> None:
    made = executable(gpipe(2, 1, 2), 2)
    assert made.routes == ()
    assert all(instruction.receives is None for instruction in made.ranks[0])


def test_every_kind_can_be_computed() -> None:
    assert set(COMPUTES) == set(Kind)


def test_two_ranks_do_not_run_one_runner() -> None:
    with pytest.raises(ScheduleError, match="0F1 on rank 1: stage 0 runs on rank 0"):
        executable(chimera(2, 2, 2), 2)


def test_updates_run_where_their_stage_does() -> None:
    made = executable(with_updates(gpipe(2, 2, 2)), 2)
    assert made.updates
    assert not executable(gpipe(2, 2, 2), 2).updates
    assert [str(instruction.action) for instruction in made.ranks[1]][-3:] == [
        "1B1",
        "send[g:v0:1→0]1",
        "1U",
    ]
    assert made.ranks[1][-1].label is not None


@pytest.mark.parametrize("stage", [1, 5])
def test_an_update_elsewhere_is_refused(stage: int) -> None:
    graph, programs = chain(1)
    program = RankProgram(0, (Compute(Kind.FORWARD, 0, 0), Update(stage)))
    with pytest.raises(ScheduleError, match=f"{stage}U on rank 0: the stage does not run there"):
        prepare([program], [runners(graph, programs)])


@pytest.mark.parametrize(("told", "there"), [(1, 2), (2, 1)])
def test_another_number_of_stages(told: int, there: int) -> None:
    graph, _ = chain(told)
    programs = lower(gpipe(told, told, 1), graph)
    with pytest.raises(ScheduleError, match=f"the pipeline has {there}"):
        prepare(programs, [runners(*chain(there))])


def test_another_number_of_micro_batches() -> None:
    graph, programs = chain(1)
    with pytest.raises(ScheduleError, match="for 2 micro-batches, the batch is cut into 3"):
        prepare(lower(gpipe(1, 1, 2), graph), [runners(graph, programs)] * 3)


def test_transfers_print_as_in_the_programs() -> None:
    transfer = Transfer(Direction.RECV, Payload.ACTIVATION, "v0", 0, 1, 0)
    assert str(executable(gpipe(2, 2, 1), 2).ranks[1][0].action) == str(transfer)
