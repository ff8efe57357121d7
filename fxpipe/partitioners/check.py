"""What makes a plan legal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from fxpipe.analysis.cuts import describe, why_illegal
from fxpipe.errors import IllegalPlanError

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture
    from fxpipe.ir.plan import PartitionPlan


def check_plan(capture: Capture, plan: PartitionPlan) -> None:
    """Nothing, if the plan is one for this capture.

    A plan is legal if it was made for this graph, gives every node of the body one stage, never goes
    back to an earlier stage, and is cut only where `fxpipe.analysis.cuts` allows it.

    Raises:
        IllegalPlanError: otherwise; the message lists every violation.
    """
    found = violations(capture, plan)
    if found:
        raise IllegalPlanError("the plan does not fit:\n  • " + "\n  • ".join(found))


def violations(capture: Capture, plan: PartitionPlan) -> tuple[str, ...]:
    """What is wrong with a plan, a sentence each."""
    return (*_stale(capture, plan), *_order(capture, plan))


def _stale(capture: Capture, plan: PartitionPlan) -> Iterator[str]:
    if plan.fingerprint != capture.fingerprint():
        yield (
            f"it was made for another graph ({plan.fingerprint}, this one is "
            f"{capture.fingerprint()}): make it anew"
        )
    names = [node.name for node in capture.body]
    missing = [name for name in names if name not in plan.stages]
    unknown = sorted(set(plan.stages) - set(names))
    for label, some in (("no stage is given for", missing), ("the graph has no node", unknown)):
        if some:
            more = f" and {len(some) - 5} more" if len(some) > 5 else ""
            yield f"{label} {', '.join(map(repr, some[:5]))}{more}"


def _order(capture: Capture, plan: PartitionPlan) -> Iterator[str]:
    known = [(i, node) for i, node in enumerate(capture.body) if node.name in plan.stages]
    for (_, before), (position, after) in pairwise(known):
        left, right = plan.stages[before.name], plan.stages[after.name]
        if right < left:
            yield (
                f"{describe(after)} is in stage {right}, but {describe(before)} before it is already "
                f"in stage {left}"
            )
        elif right > left:
            reason = why_illegal(capture, position)
            if reason is not None:
                yield f"the cut between {describe(before)} and {describe(after)}: {reason}"
