import torch
from torch import nn

from fxpipe.ir.cost import CostProfile
from fxpipe.partitioners.assemble import anchor_keys, anchored, plan_of
from tests.builders import build_capture
from tests.captures import chain_capture


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act, self.norm = nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4, affine=False)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.lin(x)) * self.scale
        return self.norm(self.lin(x)) + self.scale


def test_a_plan_starts_stages_at_its_cuts() -> None:
    plan = plan_of(chain_capture(5), (2, 4))
    assert list(plan.stages.values()) == [0, 0, 1, 1, 2]
    assert plan.starts == ("neg_2", "neg_4")
    assert plan.fingerprint == chain_capture(5).fingerprint()
    assert plan_of(chain_capture(3), ()).num_stages == 1


def test_anchors_are_the_calls_that_bind_weights_to_a_stage() -> None:
    model = Net()
    capture = build_capture(model, torch.randn(3, 4))
    costs = CostProfile(
        {}, "measure", 3, capture.fingerprint(), {"lin": 80, "lin_1": 80, "mul": 16, "add": 16}
    )
    plan = plan_of(capture, (3,))
    assert anchored(capture, costs, plan) == {
        "lin#0": 0,
        "scale#0": 0,
        "lin#1": 1,
        "norm#0": 1,  # it has no parameters, but buffers that change
        "scale#1": 1,
    }


def test_without_costs_every_module_is_an_anchor() -> None:
    capture = build_capture(Net(), torch.randn(3, 4))
    assert anchor_keys(capture)["act"] == ["act#0"]
