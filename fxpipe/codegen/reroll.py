"""A module call that no cut divides, as a call of the user's own module again.

The user's module runs its own Python: its hooks fire, a wrapped or compiled block stays one, and the
source of a stage reads like the user's model. Which calls are taken is decided together with the
edges, in `fxpipe.portals.steps`, since arguments of such a call have to be handed to its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import torch.fx

from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.emit import module_call
from fxpipe.codegen.names import Names, quoted
from fxpipe.codegen.objects import Objects
from fxpipe.codegen.statements import Statement
from fxpipe.portals.calls import ModuleCall

Place: TypeAlias = tuple[str, tuple[str | int, ...]]
"""A local variable, and the steps from it to a value."""


def statements(
    call: ModuleCall, section: str, write: Arguments, objects: Objects, names: Names
) -> Iterator[Statement]:
    """The call, and the lines that take what others read out of its result and its arguments.

    Args:
        call: the module call.
        section: path of the module that makes it.
        write: writes the arguments.
        objects: the objects that the stage hands to calls.
        names: gives a free name for a result of several parts.
    """
    span = call.span
    origin = f"{span.path or 'the model'}, call {span.call}"
    line = partial(Statement, section=section, origin=origin)
    yield from objects.made_for(span, section, origin)
    used = objects.used_by(span)
    callee = write.bindings.module(span.path)
    returned = {n: span.outputs[n.name] for n in call.writes if n.name in span.outputs}
    places = dict(_places(call, objects))
    if call.leaks:
        write.imports.add("from fxpipe import ops")
        watched = names.take(f"{span.path}_watched")
        paths = dict.fromkeys(span.inside[node.name].path for node in call.leaks)
        yield line(f"ops.Watched({', '.join([callee, *map(quoted, paths)])})", holder=watched)
        callee, used = watched, (*used, watched)
        for node in call.leaks:
            place = span.inside[node.name]
            places[node] = watched, (place.path, place.call, *place.steps)
    text = module_call(callee, span.via, span.args, span.kwargs, write)
    yield from _results(call, returned, text, partial(line, uses=used), write, names)
    for node, (holder, steps) in places.items():
        yield line(holder + _access(steps), (node,), uses=(holder,))


def _places(call: ModuleCall, objects: Objects) -> Iterator[tuple[torch.fx.Node, Place]]:
    """In which argument a value is found that the call has put there."""
    for node in call.writes:
        if node.name in call.span.changed and node.name not in call.span.outputs:
            where, *steps = call.span.changed[node.name]
            yield node, (objects.holder(call.span, where), tuple(steps))


def _results(
    call: ModuleCall,
    where: Mapping[torch.fx.Node, tuple[str | int, ...]],
    text: str,
    line: Callable[..., Statement],
    write: Arguments,
    names: Names,
) -> Iterator[Statement]:
    """The call, and where each of the values in its result is found."""
    if len(where) < 2:
        path = next(iter(where.values()), ())
        yield line(text + _access(path), tuple(where), call.reads)
        return
    whole = next((node for node, path in where.items() if not path), None)
    if whole is not None:
        yield line(text, (whole,), call.reads)
        for node, path in where.items():
            if node is not whole:
                yield line(write.value(whole) + _access(path), (node,), (whole,))
        return
    holder = names.take(f"{call.span.path or 'model'}_out")
    yield line(text, (), call.reads, holder=holder)
    for node, path in where.items():
        yield line(holder + _access(path), (node,))
    yield line(f"del {holder}")


def _access(path: tuple[str | int, ...]) -> str:
    """``(0, "weights", ".hidden")`` as ``[0]['weights'].hidden``."""
    return "".join(
        step if isinstance(step, str) and step.startswith(".") else f"[{_key(step)}]"
        for step in path
    )


def _key(step: str | int) -> str:
    return quoted(step) if isinstance(step, str) else str(step)
