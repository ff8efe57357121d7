"""The text of the code that runs: which expression a frame evaluates, and what stands around it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column (in bytes)."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Text:
    """A file's syntax tree.

    Attributes:
        calls: where each call stands → it.
        around: node → the node that it is a part of.
    """

    calls: dict[Span, ast.Call] = field(default_factory=dict)
    around: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def outwards(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first, up to the function's own."""
        while node in self.around:
            node = self.around[node]
            yield node
            if isinstance(node, Function):
                return

    def function(self, node: ast.AST) -> Function | None:
        """The function that a node belongs to."""
        found = [each for each in self.outwards(node) if isinstance(each, Function)]
        return found[0] if found else None


def span_of(node: Any) -> Span:
    """Where an expression stands."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def call_in_progress(frame: FrameType) -> tuple[Text, ast.Call] | None:
    """The call that a frame makes now, with the text around it; None if there is no text of it."""
    code = frame.f_code
    span = next(islice(code.co_positions(), frame.f_lasti // 2, None), None)
    if span is None or None in span:
        return None
    text = _text(code.co_filename, "".join(linecache.getlines(code.co_filename, frame.f_globals)))
    call = text.calls.get(span)
    return None if call is None else (text, call)


@lru_cache(maxsize=32)
def _text(filename: str, source: str) -> Text:
    text = Text()
    try:
        tree = ast.parse(source, filename)
    except (SyntaxError, ValueError):
        return text
    for node in ast.walk(tree):
        for inner in ast.iter_child_nodes(node):
            text.around[inner] = node
        if isinstance(node, ast.Call):
            text.calls[span_of(node)] = node
    return text
