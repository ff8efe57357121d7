from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.findings.units import largest_unit
from tests.captures import chain_capture, costs_of
from tests.unit.findings.models import Block, teller


class Writes(nn.Module):
    """Three nodes that no cut may separate, and one beside them."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        y.mul_(2)
        y.sub_(3)
        return y * 4


def test_the_largest_share_wins_not_the_most_nodes() -> None:
    capture = fxpipe.trace(Writes(), (torch.randn(4, 8),))
    heavy = largest_unit(capture, costs_of(capture, (1.0, 1.0, 1.0, 5.0)))
    assert heavy is not None
    assert (heavy.first, heavy.last, heavy.nodes) == ("mul_1", "mul_1", 1)
    assert heavy.share == pytest.approx(5 / 8)
    assert heavy.reason == "a single operation"


def test_a_unit_of_several_nodes_says_what_binds_them() -> None:
    capture = fxpipe.trace(Writes(), (torch.randn(4, 8),))
    for costs in (costs_of(capture, (1.0, 1.0, 1.0, 1.0)), None):
        unit = largest_unit(capture, costs)
        assert unit is not None
        assert (unit.first, unit.last, unit.nodes) == ("add", "sub", 3)
        assert unit.share == (None if costs is None else pytest.approx(0.75))
        assert "memory that is written in place" in unit.reason


def test_further_bonds_are_counted() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            z = x + 2
            y.mul_(2)
            z.mul_(2)
            return y * z

    unit = largest_unit(fxpipe.trace(Twice(), (torch.randn(4, 8),)), None)
    assert unit is not None
    assert unit.nodes == 4
    assert unit.reason.endswith("(and 1 more such bonds)")


def test_layers_and_modules_that_stay_whole() -> None:
    model = nn.Sequential(Block(), Block())
    capture = fxpipe.trace(model, (torch.randn(4, 8),))
    unit = largest_unit(capture, costs_of(capture, (9.0, 1.0, 1.0, 1.0)))
    assert unit is not None
    assert (unit.path, unit.reason) == ("0.linear", "a single layer")
    model, args = teller()
    capture = fxpipe.trace(model, args)
    costs = costs_of(capture, [float(node.target == "router") for node in capture.body])
    unit = largest_unit(capture, costs)
    assert unit is not None
    assert unit.path == "router"
    assert unit.reason.startswith("a module that stays whole: its Python code depends on values")


def test_nothing_is_no_unit() -> None:
    assert largest_unit(chain_capture(0), None) is None


def test_costs_of_nothing() -> None:
    capture = chain_capture(3)
    unit = largest_unit(capture, costs_of(capture, (0.0, 0.0, 0.0)))
    assert unit is not None
    assert unit.share == 0.0
