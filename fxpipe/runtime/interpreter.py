"""`run_rank`: the one interpreter of a rank's instructions."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING

from fxpipe import interrupts
from fxpipe.ir.action import Action
from fxpipe.runtime.backend import Cancelled, Stopped
from fxpipe.runtime.instructions import Instruction
from fxpipe.runtime.unfinished import forget_unfinished

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step


def run_rank(
    rank: int, instructions: Sequence[Instruction], step: Step
) -> Generator[Action, None, None]:
    """Run a rank's instructions, in order.

    Yields:
        an action, if the value that it waits for is not there and the transport does not wait itself.

    Raises:
        Cancelled: if another rank has failed.
        Stopped: if an action raised StopIteration.
        BaseException: what an action raised, with notes that say where it happened.
    """
    transport = step.transport
    note = step.record.ranks[rank].append
    now = perf_counter_ns
    for instruction in instructions:
        if transport.failed:
            raise Cancelled
        interrupts.check()
        route = instruction.receives
        if route is not None:
            while not transport.can_receive(route, instruction.micro_batch):
                yield instruction.action
        label = instruction.label
        try:
            if label is None:
                instruction.run(step)
            else:
                start = now()
                with label:
                    instruction.run(step)
                note((instruction.action, start, now()))
        except Cancelled:
            if label is not None:
                _forget(step)
            raise
        except BaseException as error:
            step.explain(error, instruction.action)
            _forget(step)
            if isinstance(error, StopIteration):
                raise Stopped(error) from None
            raise


def _forget(step: Step) -> None:
    if step.keeps_graph:
        forget_unfinished()
