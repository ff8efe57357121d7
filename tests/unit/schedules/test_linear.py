from __future__ import annotations

import pytest

from fxpipe.ir.stage import HOST
from fxpipe.schedules.linear import linear


def test_every_stage_reads_the_one_before() -> None:
    graph = linear(3, nbytes=10)
    assert [graph.producers(stage) for stage in range(3)] == [(), (0,), (1,)]
    assert [graph.consumers(stage) for stage in range(3)] == [(1,), (2,), ()]
    assert [edge.nbytes for edge in graph.edges] == [10, 10]
    assert graph.inputs[0].producer == HOST
    assert not graph.portals


def test_one_stage_has_no_edges() -> None:
    assert linear(1).edges == ()


def test_no_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        linear(0)
