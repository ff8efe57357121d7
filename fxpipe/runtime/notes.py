"""What is added to an exception that comes out of a stage: which stage, which of the user's lines."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from fxpipe.ir.action import Action, Compute, Kind, Update
from fxpipe.ir.stage import StageProgram

_NOT_USERS: Final = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    "<",
)
_WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward of the inputs",
    Kind.BACKWARD_WEIGHT: "backward of the weights",
    Kind.RECOMPUTE: "recomputation",
}


_TWICE: Final = "backward through the graph a second time"
"""What torch says of a graph that is not there any more."""
_ONCE_EACH: Final = (
    "fxpipe: each stage differentiates its part of a micro-batch once. What the loss reads besides the "
    "result, such as an attribute that a forward has set, must be part of the result; a target with a "
    "graph must be detached, or be an input"
)


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
    if action.kind is not Kind.FORWARD and _TWICE in str(error):
        error.add_note(_ONCE_EACH)


def note_updated(error: BaseException, stages: Collection[int]) -> None:
    """Say in the exception of a step which stages have made the optimiser's step before it."""
    if stages:
        which = ", ".join(map(str, sorted(stages)))
        error.add_note(
            f"fxpipe: the optimiser's step was made or begun for stages {which}, and for no other"
        )


def _users_line(error: BaseException, program: StageProgram, file: str) -> str | None:
    """Module path and source line of the user's that the stage's line stands for.

    A line that calls a whole module has no source line of its own: the one where the module's code
    was is told, if that is not torch's.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    for at, (frame, line) in enumerate(frames):
        if frame.f_code.co_filename == file:
            where = program.lines.get(line)
            inside = _innermost(frames[at + 1 :])
            return f"{where}, {inside}" if where and inside and " in " not in where else where
    return None


def _innermost(frames: Sequence[tuple[FrameType, int]]) -> str | None:
    """The last of the frames that is of the user's own code."""
    for frame, line in reversed(frames):
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_USERS):
            text = linecache.getline(code.co_filename, line).strip()
            return f"{Path(code.co_filename).name}:{line} in {code.co_name}: {text}"
    return None
