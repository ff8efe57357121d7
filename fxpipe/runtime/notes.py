"""What is added to an exception that comes out of a stage: which stage, which of the user's lines."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from fxpipe.ir.action import Action, Compute, Kind, Update
from fxpipe.ir.stage import StageProgram

_WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward of the inputs",
    Kind.BACKWARD_WEIGHT: "backward of the weights",
    Kind.RECOMPUTE: "recomputation",
}


def add_notes(
    error: BaseException, action: Action, programs: Sequence[StageProgram], files: Sequence[str]
) -> None:
    """Say in the exception where the pipeline was.

    Args:
        error: as raised inside the action.
        action: what the rank was doing.
        programs: of all stages.
        files: name of each stage's source in tracebacks.
    """
    if isinstance(action, Update):
        error.add_note(f"fxpipe: stage {action.stage} of {len(programs)}, update ({action})")
        return
    if not isinstance(action, Compute):
        error.add_note(f"fxpipe: while handing on a value ({action})")
        return
    stage = action.stage
    error.add_note(
        f"fxpipe: stage {stage} of {len(programs)}, micro-batch {action.micro_batch}, "
        f"{_WORDS[action.kind]} ({action})"
    )
    where = _users_line(error, programs[stage], files[stage])
    if where is not None:
        error.add_note(f"fxpipe: at {where}")


def _users_line(error: BaseException, program: StageProgram, file: str) -> str | None:
    """Module path and source line of the user's that the stage's line stands for."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            return program.lines.get(line)
    return None
