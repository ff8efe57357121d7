"""Conditions of a forward that do nothing but raise: ``assert x.isfinite().all()``.

They are told by the code that runs: of the two ways on from a condition, one leads straight to a
``raise``, with no other step that is remembered.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from functools import lru_cache
from types import CodeType, FrameType
from typing import Final

_LONGEST: Final = 200
"""So many instructions may make up the message."""
_CALLS: Final = ("CALL", "PRECALL", "CALL_FUNCTION_EX")
_PASSED_OVER: Final = ("PRECALL", "CALL", "TO_BOOL", "NOT_TAKEN")
_ENDS: Final = (
    *("RETURN", "YIELD", "JUMP", "POP_JUMP", "FOR_ITER", "SEND", "RERAISE"),
    *("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF"),
)
"""What ends the straight way to a raise: a step elsewhere, or something that is remembered."""


def passes_if(frame: FrameType, is_call: bool) -> bool | None:
    """For which truth value a frame goes on that tests one now; None if the other does not just raise.

    Args:
        frame: it evaluates the truth of a value, or has called a method that returns it.
        is_call: whether it is a call.
    """
    steps, conditions = _conditions(frame.f_code)
    # a call may have gone on to the cache entries behind its instruction
    now = bisect_right(steps, frame.f_lasti) - 1
    return conditions.get((steps[now], is_call)) if now >= 0 else None


@lru_cache(maxsize=256)
def _conditions(code: CodeType) -> tuple[list[int], dict[tuple[int, bool], bool]]:
    """Offsets of instructions; (offset, whether it is a call) → the truth value that does not raise."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    at = {step.offset: index for index, step in enumerate(steps)}
    found = {}
    for index, step in enumerate(steps):
        jump = _jump_after(steps, index)
        if jump is None:
            continue
        taken_if = "IF_TRUE" in steps[jump].opname
        if _raises(steps, at.get(steps[jump].argval)):
            passes = not taken_if
        elif _raises(steps, jump + 1):
            passes = taken_if
        else:
            continue
        found[step.offset, step.opname in _CALLS] = passes
    return [step.offset for step in steps], found


def _jump_after(steps: list[dis.Instruction], index: int) -> int | None:
    """The conditional jump that takes what an instruction leaves, or that it is itself."""
    if not steps[index].opname.startswith((*_CALLS, "POP_JUMP", "TO_BOOL")):
        return None
    while index < len(steps) and steps[index].opname in (*_PASSED_OVER, "CALL_FUNCTION_EX"):
        index += 1
        if index < len(steps) and steps[index].opname in _CALLS:
            return None
    name = steps[index].opname if index < len(steps) else ""
    is_test = name.startswith("POP_JUMP") and name.endswith(("IF_TRUE", "IF_FALSE"))
    return index if is_test else None


def _raises(steps: list[dis.Instruction], start: int | None) -> bool:
    """Whether the code from an instruction on only makes an exception and raises it."""
    if start is None:
        return False
    for step in steps[start : start + _LONGEST]:
        if step.opname == "RAISE_VARARGS":
            return True
        if step.opname.startswith(_ENDS):
            return False
    return False
