"""What a schedule's order means for the bits of sums over micro-batches."""

from __future__ import annotations

from fxpipe.ir.schedule import Schedule


def sums_note(schedule: Schedule) -> str:
    """Why gradients agree with a plain loop's up to rounding only; empty if they have its very bits."""
    if not schedule.has_backward:
        return ""
    if schedule.replicas > 1:
        return (
            "two copies of every stage add up their gradients at the end: they agree with those of a "
            "plain loop over the micro-batches up to rounding, not bit for bit"
        )
    if not schedule.ascends:
        return (
            "the schedule takes micro-batches out of ascending order: gradients agree with those of a "
            "plain loop over the micro-batches up to rounding, not bit for bit"
        )
    return ""
