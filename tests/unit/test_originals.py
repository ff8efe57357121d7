from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.originals import Originals
from tests.unit.capture import small

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_parameters_that_were_written_into_are_put_back(
    error: type[BaseException] | None,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    memory = [parameter.data_ptr() for parameter in model.parameters()]
    try:
        with Originals(model) as originals:
            originals.about_to_write([model[0].weight[1:]])
            model[0].weight.data[2].zero_()
            model[1].weight.data = torch.zeros(4, 4)
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    assert [parameter.data_ptr() for parameter in model.parameters()] == memory
    assert all(map(torch.equal, model.parameters(), before))


def test_what_is_not_written_into_is_not_copied() -> None:
    model = nn.Linear(4, 4)
    with Originals(model) as originals:
        originals.about_to_write([torch.zeros(4)])
        originals.about_to_write([model.bias])
        assert list(originals._values) == [model.bias]


def test_lazy_and_meta_parameters_have_nothing_to_keep() -> None:
    with Originals(nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2, device="meta"))):
        pass


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("make", [small.Codebook, small.Normalised])
def test_a_recording_leaves_the_parameters(make: type[nn.Module], mode: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), make(), nn.Linear(4, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    capture = trace(model, (X,), mode=mode)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    if make is small.Codebook:
        assert capture.changed_state == ("1.codes",)
