"""What real models do now and then, each in a model of a few lines, recorded and cut everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.portals.edges import link
from tests.builders import plan_at
from tests.unit.codegen.exact import assert_cuts_are_exact


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))


class Autocast(Linears):
    def forward(self, x):
        x = self.a(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.b(x)
        with torch.no_grad():
            y = self.c(x.float())
        return self.c(x.float()) + y


class Crooked(torch.autograd.Function):
    """Its gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2.5


class HandWritten(Linears):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)  # neither parameter nor buffer

    def forward(self, x):
        return self.b(Crooked.apply(self.a(x)) * self.table) + torch.ones(4, device=x.device)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        y, (hidden, cell) = self.lstm(x.unsqueeze(1).expand(-1, 3, -1))
        return self.head(y[:, -1]) + self.head(hidden[-1]), cell


@dataclass
class Record:
    hidden: torch.Tensor
    count: int


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Structured(nn.Module):
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return Record(y.relu(), 3), Pair(y, y + 1)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Structured.Part(), Structured.Part()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)

    def forward(self, x):
        record, pair = self.one(x)
        second, other = self.two(record.hidden + pair.second)
        rows = (other.first[:, None], other.second[:, None], second.hidden[:, None])
        mixed, weights = self.attention(*rows)
        return {"record": record, "pair": Pair(mixed, other.second), "weights": weights}


class InPlace(Linears):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        y = self.a(x)
        y[:, 0] = 0.0
        y.add_(1)
        z = F.relu(self.b(y), inplace=True) * 1.5
        self.count += 1
        z += y.detach()
        return self.c(z.view(-1).view(z.shape)) * self.count


class Tied(Linears):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight = self.a.weight
        self.twice = nn.Sequential(self.a, nn.ReLU(), self.a)

    def forward(self, x):
        return F.linear(self.twice(self.b(x)), self.a.weight), self.a.bias, 5, None, x


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.ReLU())
        self.two = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.one, x, use_reentrant=False)
        return self.two.forward(x)


class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.two = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.two(F.elu(self.norm(self.one(x))))


MODELS = [
    Autocast,
    HandWritten,
    Recurrent,
    Structured,
    InPlace,
    Tied,
    Checkpointed,
    Parametrized,
]


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", MODELS)
def test_every_cut(kind: type[nn.Module], train: bool) -> None:
    assert_cuts_are_exact(kind().train(train), (torch.randn(2, 4),))


def sources(model: nn.Module) -> str:
    """The stages of the model cut before its last node, one after the other."""
    capture = assert_cuts_are_exact(model, (torch.randn(2, 4),))
    plan = plan_at(capture, capture.body[legal_cuts(capture)[-1]].name)
    return "".join(p.source for p in generate(capture, plan, link(capture, plan), model))


def test_results_of_any_shape_are_unpacked() -> None:
    source = sources(Structured())
    assert "relu = one_out[0].hidden" in source
    assert "add = one_out[1][1]" in source


def test_how_a_module_was_called_is_kept() -> None:
    assert "= self.one(x)" in sources(Checkpointed())
    whole = Checkpointed()
    capture = trace(whole, (torch.randn(2, 4),))
    plan = plan_at(capture, capture.body[3].name)
    second = generate(capture, plan, link(capture, plan), whole)[1]
    assert "= self.two.forward(" in second.source


def test_autocast_follows_the_device_of_the_stage() -> None:
    source = sources(Autocast())
    assert "ops.enter_autocast(self.device.type, torch.bfloat16, True, True)" in source
    assert "ops.set_grad_enabled(False)" in source


def test_constants_are_bound() -> None:
    source = sources(HandWritten())
    assert f"ops.apply_function({__name__}.Crooked, a)" in source
    assert "torch.ones(4, device=self.device)" in source
    assert source.count("= constants[") == 1


class Hands(Linears):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(4, 4)

        def forward(self, x, other):
            return other(self.own(x))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, self.a)
        return x


def test_a_module_that_is_handed_over_is_bound_like_one_that_is_called() -> None:
    model = Hands()
    capture = trace(model, (torch.randn(2, 4),))
    second = next(span for span in capture.spans if span.path == "layers.1")
    plan = plan_at(capture, second.nodes[0])
    programs = generate(capture, plan, link(capture, plan), model)
    assert ["a" in program.called for program in programs] == [True, True]
    assert "self.layers_1(" in programs[1].source
    assert "self.a)" in programs[1].source


class Forces(Linears):
    def forward(self, x):
        y = self.a(x).detach().requires_grad_()
        energy = self.b(y.tanh()).sum()
        (force,) = torch.autograd.grad(energy, y, create_graph=True)
        return self.a(force) + self.b(x)


class HooksLate(Linears):
    def forward(self, x):
        h = self.a(x)
        y = self.b(h)
        h.register_hook(lambda gradient: gradient * 2)
        return y + h


class WritesThroughViews(Linears):
    def forward(self, x):
        h = self.a(x)
        k = h.new_empty(h.shape)
        k[..., :2].copy_(h[..., :2])
        k[..., 2:] = h[..., 2:] * 2
        return self.b(k.relu())


@pytest.mark.parametrize("kind", [Forces, HooksLate, WritesThroughViews])
def test_every_cut_of_what_autograd_sees_late(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    assert_cuts_are_exact(kind(), (torch.randn(4, 4),))
