from __future__ import annotations

import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.capture.guards import guards_of
from fxpipe.findings.decisions import guard_findings, written
from fxpipe.ir.capture import Capture
from fxpipe.portals.calls import span_fates
from tests.builders import plan_at
from tests.unit.findings.models import teller


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x) if mask.all() else x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Inner(), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.last(self.inner(x, mask))


def value_of(capture: Capture) -> torch.fx.Node:
    (guard,) = guards_of(capture)
    value = guard.args[0]
    assert isinstance(value, torch.fx.Node)
    return value


def test_expression_line_and_sources() -> None:
    model, args = teller()
    (found,) = guard_findings(fxpipe.trace(model, args), None)
    assert found.expression == "bool(mask.float().mean().gt(limit))"
    assert found.expected == "True"
    assert (found.path, found.called) == ("", None)
    assert "if mask.float().mean() > self.limit:" in found.source
    assert (found.inputs, found.buffers) == (("mask",), ("limit",))


def test_a_called_module_decides_by_itself() -> None:
    capture = fxpipe.trace(Outer(), (torch.randn(4, 8), torch.ones(4, 8)))
    fates = span_fates(capture, plan_at(capture, "last"))
    (found,) = guard_findings(capture, fates)
    assert (found.path, found.called) == ("inner", "inner")


def test_long_expressions_break_off_at_names() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            for _ in range(12):
                mask = mask.abs().clamp(0, 100)
            return self.linear(x) if mask.all() else x

    capture = fxpipe.trace(Long(), (torch.randn(4, 8), torch.ones(4, 8)))
    text = written(capture, value_of(capture), limit=60)
    assert len(text) <= 60
    assert text.startswith("bool(")
    assert text.endswith(".clamp(0, 100).all())")
    assert written(capture, value_of(capture), limit=5) == value_of(capture).name


def test_sizes_are_arithmetic() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            full = mask.sum() == mask.numel() + 1
            return x if full else self.linear(x)

    capture = fxpipe.trace(Sized(), (torch.randn(4, 8), torch.ones(4, 8)))
    assert written(capture, value_of(capture)) == "bool(mask.sum() == x.size(0) * 8 + 1)"


def test_buffers_of_numbered_modules_are_told_by_their_names() -> None:
    class Ready(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ready", torch.tensor(False))
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x if self.ready else x * 2)

    model = nn.Sequential(nn.Linear(8, 8), Ready(), nn.Linear(8, 8))
    (found,) = guard_findings(fxpipe.trace(model, (torch.randn(4, 8),)), None)
    assert (found.expression, found.buffers) == ("bool(1.ready)", ("1.ready",))
