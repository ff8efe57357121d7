"""Laws of cuts, plans and the values that cross, over random models."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpipe.analysis.cuts import legal_cuts, why_illegal
from fxpipe.analysis.estimate import estimate
from fxpipe.analysis.liveness import alive_bytes
from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace
from fxpipe.errors import InfeasiblePlanError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import StageGraph
from fxpipe.partitioners.assemble import anchor_keys, plan_of
from fxpipe.partitioners.chain import stage_seconds
from fxpipe.partitioners.check import check_plan, violations
from fxpipe.partitioners.follow import follow
from fxpipe.partitioners.linear import chain_of
from fxpipe.partitioners.manual import manual_cuts
from fxpipe.partitioners.partition import partition
from fxpipe.portals.edges import link
from tests.strategies import Recipe, RecipeModel, example, plans, recipes

LINK = Cluster(ranks=1, bandwidth=1e6)


def cuts_of(plan: PartitionPlan) -> list[int]:
    stages = list(plan.stages.values())
    return [at for at, (a, b) in enumerate(pairwise(stages), 1) if a != b]


@settings(max_examples=30)
@given(recipes(), st.data())
def test_a_legal_plan_is_legal_and_any_other_is_refused(
    recipe: Recipe, data: st.DataObject
) -> None:
    capture = trace(RecipeModel(recipe), example(recipe, 3), verify=False)
    check_plan(capture, data.draw(plans(capture)))
    position = data.draw(st.integers(1, len(capture.body) - 1))
    reason = why_illegal(capture, position)
    assert (reason is None) == (position in legal_cuts(capture))
    assert bool(violations(capture, plan_of(capture, [position]))) == (reason is not None)


@settings(max_examples=30)
@given(recipes(), st.data())
def test_the_names_of_a_plan_s_starts_make_the_same_plan(
    recipe: Recipe, data: st.DataObject
) -> None:
    capture = trace(RecipeModel(recipe), example(recipe, 3), verify=False)
    plan = data.draw(plans(capture))
    assert manual_cuts(capture, plan.starts) == tuple(cuts_of(plan))


@settings(max_examples=30)
@given(recipes())
def test_the_bytes_alive_at_a_cut_are_those_of_its_edges(recipe: Recipe) -> None:
    capture = trace(RecipeModel(recipe), example(recipe, 3), verify=False)
    alive = alive_bytes(capture)
    for position in legal_cuts(capture):
        graph = link(capture, plan_of(capture, [position]))
        assert sum(edge.nbytes for edge in graph.edges) == alive[position]


@settings(max_examples=30)
@given(recipes(), st.data())
def test_traffic_is_priced_as_the_stage_graph_sends_it(recipe: Recipe, data: st.DataObject) -> None:
    model = RecipeModel(recipe)
    capture = trace(model, example(recipe, 3), verify=False)
    costs = estimate(capture, model)
    plan = data.draw(plans(capture))
    expected = [
        cost.forward + cost.backward + LINK.transfer_time(_received(link(capture, plan), stage))
        for stage in range(plan.num_stages)
        for cost in [costs.over(plan.nodes_of(stage))]
    ]
    found = stage_seconds(chain_of(capture, costs, LINK), cuts_of(plan))
    assert found == pytest.approx(expected)


def _received(graph: StageGraph, stage: int) -> int:
    """Bytes of the values and gradients that a stage is sent."""
    values = sum(edge.nbytes for edge in graph.edges if stage in edge.consumers)
    gradients = sum(
        edge.nbytes
        for edge in graph.edges
        if edge.is_differentiable
        and (stage == edge.producer or stage in edge.consumers)
        and edge.next_reader(stage) is not None
    )
    return values + gradients


@settings(max_examples=20)
@given(recipes(), st.integers(1, 5))
def test_a_partition_is_legal_or_said_to_be_impossible(recipe: Recipe, stages: int) -> None:
    model = RecipeModel(recipe)
    capture = trace(model, example(recipe, 3), verify=False)
    possible = len(legal_cuts(capture)) + 1
    if stages > possible:
        with pytest.raises(InfeasiblePlanError, match=f"at most {possible} are possible"):
            partition(capture, estimate(capture, model), stages)
        return
    plan = partition(capture, estimate(capture, model), stages)
    check_plan(capture, plan)
    assert plan.num_stages == stages


@settings(max_examples=20)
@given(recipes(), st.integers(1, 4))
def test_weights_stay_from_training_to_evaluation(recipe: Recipe, stages: int) -> None:
    model, inputs = RecipeModel(recipe), example(recipe, 3)
    first = trace(model, inputs, verify=False)
    plan = partition(first, estimate(first, model), min(stages, len(legal_cuts(first)) + 1))
    model.eval()
    with torch.no_grad():
        second = trace(model, inputs, verify=False)
    found = follow(plan, first, second)
    check_plan(second, found)
    keys = anchor_keys(second)
    placed = {key: found.stages[node] for node, some in keys.items() for key in some}
    assert placed.items() >= plan.anchors.items()


@settings(max_examples=10)
@given(recipes())
def test_measuring_covers_every_node_and_changes_nothing(recipe: Recipe) -> None:
    model, inputs = RecipeModel(recipe), example(recipe, 3)
    capture = trace(model, inputs, verify=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    costs = profile(capture, model, inputs, repeats=1)
    assert list(costs.nodes) == [node.name for node in capture.body]
    assert all(cost.forward > 0 and cost.backward >= cost.weight for cost in costs.nodes.values())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
