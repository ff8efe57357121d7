"""`partition`: every node gets a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fxpipe.analysis.cuts import bonds, cuts_for_training, legal_cuts
from fxpipe.analysis.eager_order import cuts_in_order
from fxpipe.errors import InfeasiblePlanError, PartitionError
from fxpipe.partitioners.assemble import anchored, plan_of
from fxpipe.partitioners.chain import solve
from fxpipe.partitioners.linear import chain_of
from fxpipe.partitioners.manual import manual_cuts

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture
    from fxpipe.ir.cluster import Cluster
    from fxpipe.ir.cost import CostProfile
    from fxpipe.ir.plan import PartitionPlan


def partition(
    capture: Capture,
    costs: CostProfile,
    stages: int,
    *,
    cuts: Sequence[str] | None = None,
    cluster: Cluster | None = None,
) -> PartitionPlan:
    """The plan with the lightest busiest stage, or the one cut where the user says.

    Without `cuts` the recorded order is cut into contiguous stages by an exact dynamic programme (see
    `fxpipe.partitioners.chain`; Bokhari, IEEE Trans. Computers 1988): a stage costs the time of its
    nodes forward and backward, and the transfers it receives. Of plans within a hundredth of the
    optimum, the one that divides the fewest module calls is taken; where none divides fewer, the plan is
    optimal, and so never worse than block partition (Bárány and Grinberg, arXiv 1308.2452).

    Args:
        capture: what is cut.
        costs: of its nodes.
        stages: how many stages.
        cuts: where stages start: a module path, ``path@n`` for its call n, counted from 0, or a node's
            name. None: the library decides.
        cluster: whose link the transfers are priced with (nothing else of it is read); None: 64 GB/s.

    Raises:
        PartitionError: if a name in `cuts` means nothing, or the costs are another capture's.
        IllegalPlanError: if a place in `cuts` is none where the graph may be cut.
        InfeasiblePlanError: if the graph cannot be cut into that many stages.
    """
    if stages < 1:
        raise PartitionError(f"a plan has at least one stage, got {stages}")
    if costs.fingerprint != capture.fingerprint():
        raise PartitionError(
            f"the costs were made for another graph ({costs.fingerprint}, this one is "
            f"{capture.fingerprint()}): profile or estimate this capture"
        )
    if cuts is not None:
        found = manual_cuts(capture, cuts)
        if len(found) + 1 != stages:
            raise PartitionError(
                f"{len(found)} cuts make {len(found) + 1} stages, but {stages} are asked for"
            )
    else:
        found = _best(capture, costs, stages, cluster)
    plan = plan_of(capture, found)
    return replace(plan, anchors=anchored(capture, costs, plan))


def _best(
    capture: Capture, costs: CostProfile, stages: int, cluster: Cluster | None
) -> tuple[int, ...]:
    """The best cuts: of those that training could take over, summing as eager does, if these suffice."""
    for choose in (cuts_in_order, cuts_for_training, legal_cuts):
        solved = solve(chain_of(capture, costs, cluster, choose(capture)), stages)
        if solved is not None:
            return solved
    raise InfeasiblePlanError(_too_many(capture, stages))


def _too_many(capture: Capture, stages: int) -> str:
    body = capture.body
    legal = legal_cuts(capture)
    text = f"{stages} stages were asked for, but at most {len(legal) + 1} are possible: "
    text += (
        f"the graph of {capture.model_class} has {len(body)} nodes and {len(legal)} places to cut"
    )
    widest = sorted(bonds(capture), key=lambda bond: bond.first - bond.last)
    reasons = [f"{bond.reason} ({bond.last - bond.first} places)" for bond in widest[:3]]
    if reasons:
        text += "; these rule out the most:\n  • " + "\n  • ".join(reasons)
    if capture.leaves:
        whole = ", ".join(f"{leaf.path!r}: {leaf.reason}" for leaf in capture.leaves[:3])
        text += f"\n  • {len(capture.leaves)} modules stay whole ({whole})"
    return text
