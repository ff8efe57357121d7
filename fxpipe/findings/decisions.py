"""The decisions on data that a recording depends on."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.guards import guards_of
from fxpipe.capture.slices import needed_for
from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.bindings import Bindings
from fxpipe.codegen.devices import Home
from fxpipe.codegen.emit import expression
from fxpipe.codegen.imports import Imports
from fxpipe.errors import CodegenError
from fxpipe.ir.capture import Capture
from fxpipe.ir.findings import GuardFinding
from fxpipe.portals.calls import SpanFate


def guard_findings(capture: Capture, fates: Sequence[SpanFate] | None) -> tuple[GuardFinding, ...]:
    """One for each guard, in recorded order.

    Args:
        capture: whose guards.
        fates: what becomes of its spans under a plan, if there is one.
    """
    called = {
        node: made.call.span.path
        for made in fates or ()
        if made.call is not None
        for node in made.call.nodes
    }
    return tuple(_finding(capture, node, called.get(node)) for node in guards_of(capture))


def _finding(capture: Capture, guard: torch.fx.Node, called: str | None) -> GuardFinding:
    value, expected = guard.args
    assert isinstance(value, torch.fx.Node)
    nodes = needed_for(value)
    needed = [node for node in capture.graph.nodes if node in nodes]
    names = {leaf.placeholder: leaf.name for leaf in capture.signature.placeholders}
    return GuardFinding(
        expression=written(capture, value),
        expected=repr(expected),
        path=guard.meta.get("path", ""),
        source=guard.meta.get("source", ""),
        inputs=tuple(names[node.name] for node in needed if node.op == "placeholder"),
        buffers=tuple(_buffers(capture, needed)),
        called=called,
    )


def _buffers(capture: Capture, needed: Sequence[torch.fx.Node]) -> Iterator[str]:
    read = (str(node.target) for node in needed if node.op == "get_attr")
    return (name for name in dict.fromkeys(read) if name not in capture.constants)


def written(capture: Capture, node: torch.fx.Node, limit: int = 100) -> str:
    """A value as one Python expression of inputs, buffers and constants.

    Values that would make it longer than `limit` stand in it by their names.
    """
    for depth in range(8, 0, -1):
        writer = _Written(capture, depth)
        text = ast.unparse(ast.parse(writer.text(node), mode="eval"))  # no needless parentheses
        for stand_in, path in writer.paths.items():
            text = text.replace(stand_in, path)
        if len(text) <= limit:
            return text
    return node.name


class _Written:
    """Writes values as expressions of what they are computed from, so many steps back.

    Attributes:
        paths: what stands in the text → the name of a buffer, which need be no expression (``1.ready``).
    """

    def __init__(self, capture: Capture, depth: int) -> None:
        self._depth = depth
        self.paths: dict[str, str] = {}
        self._constants = capture.constants
        self._write = Arguments(self._operand, Imports(), Bindings(), Home(nn.Module()))

    def text(self, node: torch.fx.Node) -> str:
        """The expression."""
        self._depth -= 1
        try:
            if node.target is ops.affine:
                return self._affine(*node.args)
            return expression(node, self._write)
        except CodegenError:  # it takes what cannot be written, such as an object of the user's
            return node.name
        finally:
            self._depth += 1

    def _operand(self, node: torch.fx.Node) -> str:
        if node.op == "get_attr" and node.target not in self._constants:
            stand_in = f"_fxpipe_{node.name}_"
            self.paths[stand_in] = str(node.target)
            return stand_in
        if node.op in ("placeholder", "get_attr") or not self._depth:
            return node.name
        return f"({self.text(node)})"

    def _affine(self, size: Any, numerator: Any, denominator: Any, offset: Any) -> str:
        """A number that follows the batch size, as arithmetic."""
        text = self._write.operand(size)
        text += f" * {numerator}" if numerator != 1 else ""
        text += f" // {denominator}" if denominator != 1 else ""
        return f"{text} + {offset}" if offset else text
