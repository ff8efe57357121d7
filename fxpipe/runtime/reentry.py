"""Where a call is with respect to `torch.utils.checkpoint`: in whose forward, and is that run again.

    forward of a stage                          backward of the stage
      checkpoint(f, x)         ── the same ──►    unpack hook, or CheckpointFunction.backward
        f: modules are called     region            f again: the same calls

Neither kind of checkpoint tells the function that it runs again, so the Python stack is asked: it is
walked only where a checkpoint may be.
"""

from __future__ import annotations

import inspect
import sys
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch.utils import checkpoint as torch_checkpoint

from fxpipe.errors import ExecutionError


def _nested(function: Any, name: str) -> CodeType:
    """The code of a function that another one defines."""
    constants = inspect.unwrap(function).__code__.co_consts
    return next(c for c in constants if isinstance(c, CodeType) and c.co_name == name)


_FORWARD: Final[CodeType] = inspect.unwrap(torch_checkpoint.checkpoint).__code__
_FORWARD_REENTRANT: Final[CodeType] = inspect.unwrap(
    torch_checkpoint.CheckpointFunction.forward
).__code__
_RERUN: Final = _nested(torch_checkpoint._checkpoint_hook.__init__, "unpack_hook")
_RERUN_REENTRANT: Final[CodeType] = inspect.unwrap(
    torch_checkpoint.CheckpointFunction.backward
).__code__


def may_be_in_checkpoint() -> bool:
    """Whether a checkpoint can be around the caller, in a forward; cheap, and seldom true."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None or not torch.is_grad_enabled()


def checkpoints_around() -> tuple[list[object], object | None]:
    """The checkpoints whose code is running, as objects that are the same when they run again.

    Returns:
        Those in their forward, innermost first, as far as the innermost one that runs again; and that
        one, or None.
    """
    inside: list[object] = []
    at: FrameType | None = sys._getframe(1)
    while at is not None:
        code = at.f_code
        if code is _FORWARD:
            region = _of_generator(at.f_locals.get("gen"))
            if region is not None:
                inside.append(region)
        elif code is _FORWARD_REENTRANT:
            inside.append(at.f_locals["ctx"])
        elif code is _RERUN:
            return inside, at.f_locals["frame"]
        elif code is _RERUN_REENTRANT:
            return inside, at.f_locals["ctx"]
        at = at.f_back
    return inside, None


def refuse_to_run_again() -> None:
    """Refuse a call that a checkpoint around it makes again: it would count as another step.

    Raises:
        ExecutionError: if there is such a checkpoint.
    """
    in_backward = torch._C._current_graph_task_id() != -1
    if in_backward and checkpoints_around()[1] is not None:
        raise ExecutionError(
            "torch.utils.checkpoint runs this call again, and with an integer seed it would draw the "
            "random numbers of another step: compile with recompute='always' instead of putting a "
            "checkpoint around the pipeline, or with seed=None"
        )


def innermost_checkpoint() -> object | None:
    """The innermost checkpoint whose code is running."""
    inside, rerun = checkpoints_around()
    return inside[0] if inside else rerun


def _of_generator(generator: Any) -> object | None:
    """What the checkpoint without reentrant autograd keeps of its forward."""
    while generator is not None and generator.gi_yieldfrom is not None:
        generator = generator.gi_yieldfrom
    if generator is None or generator.gi_frame is None:
        return None
    found: object | None = generator.gi_frame.f_locals.get("new_frame")
    return found
