from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import fxpipe
from fxpipe.findings.examine import examine
from fxpipe.ir.capture import Capture
from fxpipe.ir.findings import Fate, InputFinding
from tests.builders import plan_at
from tests.unit.findings.models import Block, Teller, teller


@pytest.fixture
def model() -> nn.Module:
    return teller()[0]


@pytest.fixture
def capture(model: nn.Module) -> Capture:
    return fxpipe.trace(model, teller()[1])


def test_what_every_plan_shares(capture: Capture) -> None:
    found = examine(capture)
    assert found.capture == str(capture)
    assert found.plan == ""
    assert found.costs.startswith("CostProfile (estimate")
    assert found.num_nodes == len(capture.body)
    assert found.leaves == capture.leaves
    assert [leaf.path for leaf in found.leaves] == ["router"]
    assert [guard.inputs for guard in found.guards] == [("mask",)]
    assert {span.fate for span in found.spans} == {None}
    assert 0 < found.legal_cuts < found.num_nodes


def test_inputs_say_what_is_free() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor, table: torch.Tensor, flag: bool) -> torch.Tensor:
            return (x + 1) * table.sum() if flag else x

    args = (torch.randn(4, 3), torch.randn(7), True)
    found = examine(fxpipe.trace(Flat(), args, dynamic={"x": {1: "length"}}))
    assert found.inputs == (
        InputFinding("x", "f32[4,3]", 0, ((1, "length"),)),
        InputFinding("table", "f32[7]", None),
        InputFinding("flag", "True", None, is_constant=True),
    )


def test_under_a_plan(capture: Capture) -> None:
    plan = plan_at(capture, "blocks_1_linear")
    found = examine(capture, plan)
    assert found.plan == str(plan)
    fates = {span.path: span.fate for span in found.spans}
    assert fates[""] is Fate.DIVIDED
    assert {fates[f"blocks.{index}"] for index in range(3)} == {Fate.CALLED}


def test_given_costs_are_taken(capture: Capture, model: nn.Module) -> None:
    costs = fxpipe.profile(capture, model, teller()[1], progress=False)
    assert examine(capture, costs=costs).costs.startswith("CostProfile (measure")


def test_the_module_is_not_kept_alive() -> None:
    model = nn.Sequential(Block(), Block())
    capture = fxpipe.trace(model, (torch.randn(4, 8),))
    assert capture.recorded_from() is model
    del model
    gc.collect()
    assert capture.recorded_from() is None
    found = examine(capture)
    assert (found.costs, found.spans[0].module_class) == ("", "Sequential")
    assert found.largest is not None
    assert found.largest.share is None
    assert "the costs are not known" in capture.report()


def test_copies_do_not_know_the_module(capture: Capture) -> None:
    for again in (copy.deepcopy(capture), pickle.loads(pickle.dumps(capture))):
        assert again == capture
        assert again.recorded_from() is None
    assert isinstance(capture.recorded_from(), Teller)


def test_the_report_of_a_capture_has_every_subject(capture: Capture) -> None:
    text = capture.report()
    for title in (
        "Inputs: 2",
        "Module calls that were looked into: 4",
        "Modules that stay whole, other than layers of torch.nn: 1",
        "Decisions on data (guards): 1",
        "Values that are no tensors and cross if a cut is made after them: ",
        "Legal cuts: ",
        "Largest indivisible unit: ",
    ):
        assert title in text
    assert max(map(len, text.splitlines())) <= 100
    assert "called" in capture.report(plan_at(capture, "blocks_1_linear"))


def test_a_plan_of_another_capture_is_refused(capture: Capture) -> None:
    other = fxpipe.trace(nn.Sequential(Block(), Block()), (torch.randn(4, 8),))
    with pytest.raises(fxpipe.IllegalPlanError, match="was made for the capture"):
        capture.report(plan_at(other, "_1_linear"))
