from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_send_recv,
    _add_unshard_reshard,
    _format_pipeline_order,
    _validate_schedule,
)

from fxpipe.errors import FormatError
from fxpipe.ir.action import Kind, Update
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.torch_order import (
    from_torch_csv,
    from_torch_grid,
    to_torch_csv,
    to_torch_grid,
)
from fxpipe.schedules.dualpipe_v import dualpipe_v
from fxpipe.schedules.interleaved_zb import interleaved_zb
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.ir.strategies import schedules

ONE_COPY = sorted(set(SCHEDULES) - {"chimera", "dualpipe"})
"""torch has a stage on one rank."""
SOME = pytest.mark.parametrize(
    "schedule", [one_f_one_b(3, 3, 4), interleaved_zb(4, 2, 12), dualpipe_v(4, 2, 6)]
)


def _in_torch(schedule: Schedule) -> dict[int, list[_Action | None]]:
    """The schedule as torch reads its CSV."""
    rows = csv.reader(io.StringIO(to_torch_csv(schedule)))
    return {rank: [_Action.from_str(word) for word in row] for rank, row in enumerate(rows)}


@SOME
def test_torch_reads_what_is_written(schedule: Schedule) -> None:
    assert [[str(a) for a in row] for row in _in_torch(schedule).values()] == [
        [str(cell) for cell in cells] for cells in schedule.ranks
    ]


@SOME
def test_grids_are_torchs(schedule: Schedule) -> None:
    assert to_torch_grid(schedule) == _format_pipeline_order(_in_torch(schedule))


@pytest.mark.parametrize("name", ONE_COPY)
@pytest.mark.parametrize(("ranks", "per_rank", "m"), [(4, 2, 8), (2, 2, 3), (4, 1, 8), (3, 2, 7)])
def test_torch_takes_all_orders_and_its_transfers_are_left_out(
    name: str, ranks: int, per_rank: int, m: int
) -> None:
    """Its check passes; what it writes once it has added sends, receives and gathers is read again."""
    schedule = SCHEDULES[name](ranks * per_rank, ranks, m)
    home_of = schedule.placement.ranks
    actions = _in_torch(schedule)
    if schedule.has_backward:  # a forward without a backward is not for its check
        found = _validate_schedule(actions, ranks, ranks * per_rank, m)
        assert [found[stage] for stage in range(ranks * per_rank)] == list(home_of)
    gathered = {rank: _add_unshard_reshard(row) for rank, row in actions.items()}
    sent = _add_send_recv(gathered, stage_to_rank=home_of.__getitem__, num_stages=len(home_of))
    text = io.StringIO()
    csv.writer(text).writerows(sent[rank] for rank in range(ranks))
    assert "UNSHARD" in text.getvalue()
    assert ("SEND_F" in text.getvalue()) == (ranks > 1)
    assert from_torch_csv(text.getvalue(), name) == schedule


@given(schedules)
def test_both_forms_return_the_schedule(schedule: Schedule) -> None:
    words = [cell for cells in schedule.ranks for cell in cells]
    unknown = any(isinstance(cell, Update) for cell in words) or any(
        action.kind is Kind.RECOMPUTE for row in schedule.computes for action in row
    )
    if unknown or schedule.replicas > 1:
        with pytest.raises(FormatError, match="torch"):
            to_torch_csv(schedule)
        return
    assert from_torch_csv(to_torch_csv(schedule), schedule.name) == schedule
    if schedule.ranks:
        assert from_torch_grid(to_torch_grid(schedule), schedule.name) == schedule


def test_bubbles_and_what_torch_adds_are_left_out() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\r\n1RECV_F0,1F0,1I0,1W0\r\n"
    assert from_torch_csv(text) == Schedule.from_text("0F0 0B0\n1F0 1I0 1W0")
    grid = "        Rank 0 Rank 1\nStep 0: 0F0    \nStep 1:        1F0    \n"
    assert from_torch_grid(grid) == Schedule.from_text("0F0\n1F0")


def test_what_is_no_action_is_named_with_its_place() -> None:
    with pytest.raises(FormatError, match="rank 1, position 1: 'bubble' is no action"):
        from_torch_csv("0F0\n1F0,bubble\n")
    with pytest.raises(FormatError, match="its first line names no ranks"):
        from_torch_grid("Step 0: 0F0\n")
