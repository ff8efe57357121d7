from __future__ import annotations

from dataclasses import replace

import pytest

from fxpipe.ir.action import Compute, Direction, Kind, Payload, Transfer, Update
from fxpipe.ir.stage import StageProgram
from fxpipe.runtime.notes import add_notes
from tests.unit.runtime.stages import chain

SOURCE = """
def forward(x):
    y = x + 1
    return y / 0
"""


def program() -> StageProgram:
    return StageProgram(
        stage=1,
        source=SOURCE,
        class_name="Stage1",
        inputs=("x",),
        pops=(),
        outputs=("y",),
        stashes=(),
        modules={},
        tensors={},
        constants={},
        lines={4: "decoder.block, model.py:7 in forward: return y / 0"},
    )


def failure() -> BaseException:
    module: dict[str, object] = {}
    exec(compile(SOURCE, "<stage 1>", "exec"), module)
    with pytest.raises(ZeroDivisionError) as caught:
        module["forward"](1)  # type: ignore[operator]
    return caught.value


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (Kind.FORWARD, "forward (1F2)"),
        (Kind.BACKWARD, "backward (1B2)"),
        (Kind.BACKWARD_INPUT, "backward of the inputs (1I2)"),
        (Kind.BACKWARD_WEIGHT, "backward of the weights (1W2)"),
    ],
)
def test_stage_micro_batch_and_the_users_line(kind: Kind, word: str) -> None:
    error = failure()
    add_notes(error, Compute(kind, 1, 2), [program()] * 3, ["a", "<stage 1>", "b"])
    assert error.__notes__ == [
        f"fxpipe: stage 1 of 3, micro-batch 2, {word}",
        "fxpipe: at decoder.block, model.py:7 in forward: return y / 0",
    ]


def test_an_error_that_passed_no_line_of_the_stage() -> None:
    error = failure()
    add_notes(error, Compute(Kind.BACKWARD, 1, 0), [program()] * 2, ["a", "b"])
    assert error.__notes__ == ["fxpipe: stage 1 of 2, micro-batch 0, backward (1B0)"]


def test_a_whole_module_is_told_with_the_line_inside_of_it() -> None:
    whole = replace(program(), lines={1: "decoder, call 0"})
    with pytest.raises(MemoryError) as caught:
        exec(compile("inner()", "<stage 1>", "exec"), {"inner": fail})
    add_notes(caught.value, Compute(Kind.FORWARD, 1, 0), [whole] * 2, ["a", "<stage 1>"])
    line = fail.__code__.co_firstlineno + 1
    assert caught.value.__notes__[1] == (
        f"fxpipe: at decoder, call 0, test_notes.py:{line} in fail: raise MemoryError"
    )


def fail() -> None:
    raise MemoryError


def test_transfers() -> None:
    error = failure()
    transfer = Transfer(Direction.SEND, Payload.GRADIENT, "skip", 2, 0, 1)
    add_notes(error, transfer, [program()], ["a"])
    assert error.__notes__ == ["fxpipe: while handing on a value (send[g:skip:2→0]1)"]


def test_an_update_names_its_stage() -> None:
    error = ValueError("no such momentum")
    add_notes(error, Update(1), chain(2)[1], ["", ""])
    assert error.__notes__ == ["fxpipe: stage 1 of 2, update (1U)"]
