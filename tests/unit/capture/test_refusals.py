from __future__ import annotations

import pytest
import torch
from torch import nn

import fxpipe
from fxpipe.capture.refusals import refuse

X = torch.randn(4, 4)


def lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4), nn.LazyBatchNorm1d())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_a_scripted_model_is_told() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with pytest.raises(fxpipe.CaptureError, match=r"\(Sequential\) is compiled by torch.jit"):
        fxpipe.trace(model, (X,))


def test_lazy_layers_are_told_until_they_have_run() -> None:
    model = lazy()
    with pytest.raises(
        fxpipe.CaptureError, match=r"'1.weight', '1.bias', '2.weight', … has no shape"
    ):
        fxpipe.trace(model, (X,))
    with (
        fxpipe.compile(model, ["cpu"] * 2, threads_per_rank=1, costs="estimate") as pipe,
        pytest.raises(fxpipe.CaptureError, match="call the model once"),
    ):
        pipe(X)
    model(X)
    fxpipe.trace(model, (X,))


def test_parts_may_be_scripted() -> None:
    refuse(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4)))
