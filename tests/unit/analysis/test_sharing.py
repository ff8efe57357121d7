import torch
from torch import nn

from fxpipe.analysis.sharing import (
    node_parameters,
    parameter_bytes,
    parameter_names,
    shared_parameters,
)
from tests.builders import build_capture


class Tied(nn.Module):
    """An embedding whose weight is the head's too, under a second name, and a scale read directly."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.mix = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.mix(self.embed(ids)) * self.scale))


def test_a_tied_parameter_has_one_name_wherever_it_is_read() -> None:
    model = Tied()
    capture = build_capture(model, torch.zeros(2, 3, dtype=torch.long))
    assert parameter_names(capture, model) == {
        "embed": ("embed.weight",),
        "mix": ("mix.weight",),
        "mul": ("scale",),
        "mix_1": ("mix.weight",),
        "head": ("embed.weight",),
    }
    assert shared_parameters(capture, model) == {
        "embed.weight": ("embed", "head"),
        "mix.weight": ("mix", "mix_1"),
    }
    assert parameter_bytes(capture, model)["head"] == 160
    assert node_parameters(capture, model)["mul"][0] is model.scale
