from __future__ import annotations

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.program import RankProgram, homes_of


def test_homes_are_where_stages_compute() -> None:
    first = RankProgram(3, (Compute(Kind.FORWARD, 0, 1), Compute(Kind.BACKWARD, 0, 1)))
    second = RankProgram(5, (Compute(Kind.FORWARD, 1, 1), Compute(Kind.FORWARD, 0, 2)))
    assert homes_of([first, second]) == {(0, 1): 3, (1, 1): 5, (0, 2): 5}
    assert str(first) == "rank 3: 0F1 0B1"
