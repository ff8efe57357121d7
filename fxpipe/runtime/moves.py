"""What the instructions of a rank do with values: each takes the step last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fxpipe.runtime.values import map_tensors, tensors_in

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

Run: TypeAlias = "Callable[[Step], None]"


def compute_and_move(run: Run, moves: tuple[Run, ...], step: Step) -> None:
    """Compute, then hand values to the stages of the same rank."""
    run(step)
    for move in moves:
        move(step)


def on_stream(lane: Any, run: Run, step: Step) -> None:
    """Compute on the rank's stream."""
    with lane.compute():
        run(step)


def update(stage: int, step: Step) -> None:
    """Take the optimiser's step for a stage."""
    step.update(stage)


def move_value(stage: int, slot: int, reader: int, there: int, m: int, step: Step) -> None:
    """Hand a value to a stage of the same rank."""
    step.frames[reader][m].inputs[there] = step.frames[stage][m].sends[slot]


def drop_value(stage: int, slot: int, m: int, step: Step) -> None:
    """Let go of a value that every reader has."""
    step.frames[stage][m].sends[slot] = None


def move_gradient(stage: int, slot: int, holder: int, there: int, m: int, step: Step) -> None:
    """Hand a gradient to a stage of the same rank."""
    handed = step.frames[stage][m].handed
    step.frames[holder][m].later[there] = handed[slot]
    handed[slot] = None


def send_value(
    route: int, stage: int, slot: int, m: int, is_last: bool, lane: Any, step: Step
) -> None:
    """Put a value on its way to another rank."""
    sends = step.frames[stage][m].sends
    value = sends[slot]
    if is_last:
        sends[slot] = None
    step.transport.send(route, m, value if lane is None else (value, lane.mark()))


def send_gradient(
    route: int, stage: int, slot: int, m: int, is_last: bool, lane: Any, step: Step
) -> None:
    """Put a gradient on its way to another rank."""
    handed = step.frames[stage][m].handed
    grads = handed[slot]
    handed[slot] = None
    step.transport.send(route, m, grads if lane is None else (grads, lane.mark()))


def receive_value(route: int, stage: int, slot: int, m: int, lanes: Any, step: Step) -> None:
    """Take a value from another rank."""
    value = step.transport.receive(route, m)
    step.frames[stage][m].inputs[slot] = value if lanes is None else _across(value, *lanes)


def receive_gradient(route: int, stage: int, slot: int, m: int, lanes: Any, step: Step) -> None:
    """Take a gradient from another rank."""
    grads = step.transport.receive(route, m)
    step.frames[stage][m].later[slot] = grads if lanes is None else _across(grads, *lanes)


def _across(message: tuple[Any, Any], lane: Any, source: Any) -> Any:
    """The value of a message from another lane, readable on this one; its marks are kept."""
    value, event = message
    tensors = tensors_in(value)
    arrived = iter(lane.receive([t.detach() for t in tensors], event, source))
    return map_tensors(value, lambda t: next(arrived).detach().requires_grad_(t.requires_grad))
