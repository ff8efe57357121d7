from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fxpipe.capture.leaves import is_layer, leaf_reason, takes_fast_path
from fxpipe.capture.trace import trace
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees


class OwnLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(1, 1),
        nn.LSTM(1, 1),
        nn.MultiheadAttention(2, 1),
        nn.TransformerEncoderLayer(2, 1, 2),
        parametrizations.weight_norm(nn.Linear(1, 1)),
        nn.utils.spectral_norm(nn.Linear(2, 2)),
        nn.CrossEntropyLoss(),
    ],
)
def test_layers(module: nn.Module) -> None:
    assert is_layer(module)
    assert leaf_reason(module) == "a layer of torch.nn"


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(1, 1)),
        nn.ModuleList(),
        nn.Transformer(2, 1, 1, 1, 2),
        small.Mlp(),
        OwnLinear(1, 1),
        parametrizations.spectral_norm(OwnLinear(2, 2)),
    ],
)
def test_containers_and_users_classes_are_looked_into(module: nn.Module) -> None:
    assert not is_layer(module)
    assert leaf_reason(module) is None


def test_compiled_modules_stay_whole() -> None:
    assert leaf_reason(torch.compile(small.Mlp(), backend="eager")) == (
        "it is compiled by torch.compile"
    )
    assert leaf_reason(torch.jit.script(small.Mlp())) == "it is compiled by torch.jit"


def test_compiled_block_is_one_node() -> None:
    model = small.Chain(torch.compile(small.Mlp(), backend="eager"), small.Mlp())
    capture = trace(model, (torch.randn(2, 4),))
    assert capture.body[0].target == "parts.0"


@pytest.mark.parametrize("padded", [True, False])
def test_inference_takes_the_fast_path_as_eager_does(padded: bool) -> None:
    model = nn.Transformer(8, 2, 2, 1, 8, batch_first=True).eval()
    mask = torch.tensor([[False, False, True], [False, False, False]]) if padded else None
    args = (torch.randn(2, 3, 8), torch.randn(2, 2, 8))
    with torch.no_grad():
        capture = trace(model, args, {"src_key_padding_mask": mask})
        assert_agrees(capture, model, args, {"src_key_padding_mask": mask})
    assert ("encoder" in [node.target for node in capture.body]) is padded


def test_fast_paths_are_for_inference() -> None:
    layer = nn.TransformerEncoderLayer(2, 1, 2)
    assert not takes_fast_path(layer, ((), {}))
    assert takes_fast_path(layer.eval(), ((), {}))
    assert not takes_fast_path(nn.Linear(1, 1).eval(), ((), {}))
