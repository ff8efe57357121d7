"""`examine`: a capture, and maybe a plan for it, become `Findings`."""

from __future__ import annotations

from torch import nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.analysis.estimate import estimate
from fxpipe.findings.crossings import may_cross, that_cross
from fxpipe.findings.decisions import guard_findings
from fxpipe.findings.module_calls import span_findings
from fxpipe.findings.units import largest_unit
from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.findings import Findings, InputFinding
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.signature import InputLeaf
from fxpipe.portals.calls import span_fates
from fxpipe.viz.findings import findings_text


def report(
    capture: Capture,
    plan: PartitionPlan | None = None,
    *,
    costs: CostProfile | None = None,
    depth: int | None = None,
) -> str:
    """What `examine` finds, as text.

    Args:
        capture: what to look at.
        plan: how it is cut.
        costs: what its nodes cost.
        depth: how deep modules are listed (see `fxpipe.viz.findings.findings_text`).

    Raises:
        IllegalPlanError: if the plan was made for another capture.
    """
    return findings_text(examine(capture, plan, costs), depth=depth)


def examine(
    capture: Capture, plan: PartitionPlan | None = None, costs: CostProfile | None = None
) -> Findings:
    """What a capture is made of, how well it can be cut, and what a plan makes of it.

    Args:
        capture: what to look at.
        plan: how it is cut; None: what holds for every plan.
        costs: what its nodes cost; None: estimated, if the module that was recorded still lives.

    Raises:
        IllegalPlanError: if the plan was made for another capture.
    """
    crossings = tuple(may_cross(capture) if plan is None else that_cross(capture, plan))
    model = capture.recorded_from()
    if costs is None and model is not None:
        costs = estimate(capture, model)
    fates = None if plan is None else span_fates(capture, plan)
    return Findings(
        capture=str(capture),
        plan="" if plan is None else str(plan),
        costs="" if costs is None else str(costs),
        num_nodes=len(capture.body),
        inputs=tuple(map(_input, capture.signature.inputs)),
        spans=span_findings(capture, fates, costs, _classes(capture, model)),
        leaves=capture.leaves,
        guards=guard_findings(capture, fates),
        crossings=crossings,
        legal_cuts=len(legal_cuts(capture)),
        largest=largest_unit(capture, costs),
    )


def _input(leaf: InputLeaf) -> InputFinding:
    if leaf.placeholder is None:
        return InputFinding(leaf.name, repr(leaf.value), None, is_constant=True)
    return InputFinding(leaf.name, str(leaf.spec), leaf.batch_dim, leaf.dynamic)


def _classes(capture: Capture, model: nn.Module | None) -> dict[str, str]:
    """Path → name of the class, for the modules that were looked into."""
    if model is None:
        return {"": capture.model_class.rpartition(".")[2]}
    paths = {span.path for span in capture.spans}
    return {path: type(model.get_submodule(path)).__name__ for path in paths}
