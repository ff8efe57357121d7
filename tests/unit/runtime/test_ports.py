from __future__ import annotations

import pytest

from fxpipe.errors import InternalError
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.runtime.ports import Ports
from tests.unit.runtime.stages import DIFFERENTIABLE, program


def graph() -> StageGraph:
    """x → 0 → h → 1, 2; mask (no gradient) → 0, 2; 1 → y → 2."""
    return StageGraph(
        3,
        (Edge("x", HOST, (0,)), Edge("mask", HOST, (0, 2))),
        (Edge("h", 0, (1, 2), DIFFERENTIABLE), Edge("y", 1, (2,), DIFFERENTIABLE)),
        ("out",),
    )


def ports(stage: int) -> Ports:
    programs = [
        program(0, ["x", "mask"], [], stashes=("h",)),
        program(1, [], ["y"], pops=("h",)),
        program(2, ["y", "mask"], ["out"], pops=("h",)),
    ]
    return Ports.of(programs[stage], graph(), ["unread", "x", "mask"])


def test_positions_of_what_a_stage_reads() -> None:
    last = ports(2)
    assert [edge.value for edge in last.reads] == ["mask", "h", "y"]
    assert last.arguments == (2, 0)
    assert last.pops == (("h", 1),)
    assert last.host == ((0, 2),)
    assert ports(0).host == ((0, 1), (1, 2))


def test_values_that_later_stages_read_too() -> None:
    assert ports(1).shared == (0,)  # h
    assert ports(0).shared == ()  # mask has no gradient
    assert ports(2).shared == ()


def test_slots() -> None:
    assert ports(0).write_slot("h") == 0
    assert ports(0).later_slot("h") == 0
    assert ports(1).read_slot("h") == 0
    assert ports(1).later_slot("y") == 0
    assert ports(1).later_slot("h") == 1  # after the one value made


@pytest.mark.parametrize(
    "wrong",
    [
        program(1, ["h", "z"], ["y"]),
        program(1, [], ["y"]),
        program(1, ["h"], []),
    ],
)
def test_a_program_of_another_graph(wrong: object) -> None:
    with pytest.raises(InternalError, match="stage 1 does not fit"):
        Ports.of(wrong, graph(), ["x", "mask"])  # type: ignore[arg-type]
