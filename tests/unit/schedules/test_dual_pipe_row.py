from __future__ import annotations

import pytest

from fxpipe.schedules.dual_pipe_row import DualPipeRow


def _text(depth: int, depths: int, micro_batches: int) -> str:
    row = DualPipeRow(depth, depths, micro_batches, (0, 1))
    return " ".join(map(str, row.cells())).replace("OVERLAP_F_B", "")


def test_one_rank() -> None:
    assert _text(0, 1, 3) == ("0F0 1F0 0F1 1B0 (1F1;0B0) (0F2;1B1) (1F2;0B1) 1B2 0I2 0W2")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_action_comes_once(depth: int) -> None:
    row = DualPipeRow(depth, 3, 7, (4, 9), stride=2, offsets=(0, 1))
    actions = [
        action
        for cell in row.cells()
        for action in (cell.actions if hasattr(cell, "actions") else (cell,))
    ]
    forwards = [(a.stage, a.micro_batch) for a in actions if a.kind == "F"]
    weights = [(a.stage, a.micro_batch) for a in actions if a.kind in "BW"]
    inputs = [(a.stage, a.micro_batch) for a in actions if a.kind in "BI"]
    expected = {(4, 2 * m) for m in range(7)} | {(9, 2 * m + 1) for m in range(7)}
    for found in (forwards, weights, inputs):
        assert len(found) == len(set(found)) == 14
        assert set(found) == expected
