"""Which expression a frame evaluates."""

from __future__ import annotations

import ast
import sys
from typing import Any

from fxpipe.capture.syntax import call_in_progress


class Asked:
    """Looks at the text of the code that calls it."""

    def __init__(self) -> None:
        self.found: str | None = None
        self.around: list[str] = []

    def __call__(self, *args: Any) -> int:
        found = call_in_progress(sys._getframe(1))
        if found is not None:
            text, call = found
            self.found = ast.unparse(call)
            self.around = [type(node).__name__ for node in text.outwards(call)]
        return 3


def test_the_call_in_progress() -> None:
    asked = Asked()
    held = [asked(1), asked(2) + 1]
    assert held == [3, 4]
    assert asked.found == "asked(2)"
    assert asked.around == ["BinOp", "List", "Assign", "FunctionDef"]


def test_a_function_inside_ends_the_way_out() -> None:
    asked = Asked()
    inner = lambda: -asked()  # noqa: E731
    assert inner() == -3
    assert asked.around == ["UnaryOp", "Lambda"]


def test_code_without_a_text() -> None:
    asked = Asked()
    exec("asked(1)", {"asked": asked})
    assert asked.found is None
