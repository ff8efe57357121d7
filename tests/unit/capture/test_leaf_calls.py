from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


class Maps(nn.Module):
    """Changes the dict it is handed, and looks at data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, state: dict[str, Any]) -> None:
        scale = 2.0 if state["x"].sum() > 1e9 else 1.0
        state["y"] = self.linear(state["x"]) * scale


class UsesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maps, self.head = Maps(), nn.Linear(4, 400)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = {"x": x.sin() * self.head.bias[0]}
        self.maps(state)
        return self.head(state["y"])


def test_leaf_that_changes_its_argument_cannot_stay_whole() -> None:
    with pytest.raises(CaptureError, match="it changes a dict that it is handed"):
        trace(UsesDict(), (X,))


def test_leaking_leaf_is_looked_into() -> None:
    seen: list[torch.Tensor] = []

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.linear.register_forward_hook(lambda module, args, out: seen.append(out))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder.linear2.register_forward_hook(lambda m, a, out: seen.append(out))
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.clear()
            y = self.inner(self.encoder(x))
            return y + seen[-1] + self.inner.linear.bias

    model = Model()
    capture = trace(model, (X[:, None],))
    assert capture.leaves == ()
    assert_agrees(capture, model, (X[:, None],))


def test_layer_that_leaks_makes_its_parent_whole() -> None:
    seen: list[torch.Tensor] = []

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder.linear2.register_forward_hook(lambda m, a, out: seen.append(out))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.clear()
            return self.encoder(x) + seen[0]

    model = small.Chain(Block(), small.Mlp())
    capture = trace(model, (X[:, None],))
    assert [(leaf.path, leaf.reason) for leaf in capture.leaves] == [
        ("parts.0", "a tensor leaves it by a hook or an attribute")
    ]
    assert_agrees(capture, model, (X[:, None],))


class Selects(nn.Module):
    """A size that depends on data, read after a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.gate = layer, nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.layer(x[mask & (self.gate > 0)])
        h = h[0] if isinstance(h, tuple) else h
        return h.sum() / h.shape[0]


@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4), nn.Sequential(nn.Dropout(0.0))]
)
def test_layers_pass_on_that_a_size_depends_on_data(layer: nn.Module) -> None:
    x = torch.randn(4, 4)
    mask = torch.tensor([True, True, False, True])
    with pytest.raises(CaptureError, match="a size that depends on data"):
        trace(Selects(layer), (x, mask))


def test_a_loss_has_no_size() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.MSELoss()

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = x + self.loss(x[mask], x[mask] * 2)
            return y.view(y.shape[0], -1)

    x = torch.randn(4, 4)
    assert trace(Loss(), (x, x[:, 0] > 0)).leaves == ()


class Fills(nn.Module):
    def forward(self, x: torch.Tensor, box: small.Box) -> torch.Tensor:
        box.value = x.sin()
        return x + 1


class DecidesWith(nn.Module):
    """Stays whole, for it decides on data; it is handed an object that is filled only later."""

    def forward(self, x: torch.Tensor, box: small.Box) -> torch.Tensor:
        return x * 2 if x.sum() > 0 and box.value is None else x


class FillsLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decides, self.fills = DecidesWith(), Fills()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        box = small.Box(None)
        return self.fills(self.decides(x.exp(), box), box) + box.value


def test_a_leaf_is_not_handed_what_the_recording_left_in_an_object() -> None:
    with pytest.raises(CaptureError, match="it is handed a Box that changes afterwards"):
        trace(FillsLater(), (torch.randn(2, 4),))
