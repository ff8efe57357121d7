"""Where a stage draws random numbers inside modules that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch.fx

from fxpipe.ir.stage import RandomScope
from fxpipe.portals.calls import ModuleCall, drawing_paths, scope_path
from fxpipe.portals.steps import Step


def random_scopes(steps: Iterable[Step]) -> tuple[RandomScope, ...]:
    """The scopes inside module calls, with the first call of each that this stage makes.

    A dropout drawing for the third time in the model may draw for the first time in its stage; the
    number of the call is part of the key, so that no cut changes the numbers.
    """
    first: dict[str, tuple[int, bool]] = {}

    def note(path: str, call: int, is_leaf: bool) -> None:
        earliest = min(call, first.get(path, (call, is_leaf))[0])
        first[path] = (earliest, is_leaf)

    for step in steps:
        if isinstance(step, ModuleCall):
            _note_call(step, note)
        elif is_drawing_module(step):
            note(scope_path(step), scope_call(step), True)
    return tuple(RandomScope(path, call, leaf) for path, (call, leaf) in first.items())


def is_drawing_module(node: torch.fx.Node) -> bool:
    """Whether the node is a call of a module that draws."""
    return node.op == "call_module" and bool(node.meta.get("draws"))


def scope_call(node: torch.fx.Node) -> int:
    """Which call of its scope's module a drawing node belongs to."""
    scope: str = node.meta["rng"][0]
    return int(scope.rpartition("#")[2])


def _note_call(call: ModuleCall, note: Callable[[str, int, bool], None]) -> None:
    drawing = drawing_paths(call)
    for node in call.nodes:
        if is_drawing_module(node):
            note(scope_path(node), scope_call(node), True)
    for span in (call.span, *call.inner):
        if span.path in drawing and not drawing[span.path]:
            note(span.path, span.call, False)
