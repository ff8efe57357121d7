"""Cutting a model and composing its stages again is the identity, over random models and plans."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fxpipe.capture.signature import flatten
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.portals.edges import link
from tests.builders import load_stages, run_stages
from tests.equivalence.compare import same
from tests.strategies import Recipe, RecipeModel, example, plans, recipes


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@settings(max_examples=40)
@given(recipes(), st.data())
def test_stages_in_a_row_compute_what_the_model_does(recipe: Recipe, data: st.DataObject) -> None:
    model, inputs = RecipeModel(recipe), example(recipe, 3)
    capture = trace(model, inputs, verify=False)
    plan = data.draw(plans(capture))
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    before, rows = state(model), example(recipe, 5, seed=9)
    torch.manual_seed(3)
    expected, _ = flatten(model(*rows))
    after = state(model)
    model.load_state_dict(before)
    torch.manual_seed(3)
    stages = load_stages(programs, model, capture)
    given_inputs = {
        leaf.name: row for leaf, row in zip(capture.signature.inputs, rows, strict=True)
    }
    read = [given_inputs[edge.value] for edge in graph.inputs]
    found = run_stages(stages, programs, graph, read)
    same([found[i] for i in range(len(expected))], expected, "outputs")
    same(state(model), after, "buffers")


@settings(max_examples=20)
@given(recipes(), st.data())
def test_the_same_plan_gives_the_same_source(recipe: Recipe, data: st.DataObject) -> None:
    model, inputs = RecipeModel(recipe), example(recipe, 3)
    capture = trace(model, inputs, verify=False)
    plan = data.draw(plans(capture))
    again = trace(model, inputs, verify=False)
    assert again.fingerprint() == capture.fingerprint()
    one = generate(capture, plan, link(capture, plan), model)
    other = generate(again, plan, link(again, plan), model)
    assert [program.source for program in one] == [program.source for program in other]
