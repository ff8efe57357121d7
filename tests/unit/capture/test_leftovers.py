from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxpipe.capture.fallback import Decisions, KeepWholeError
from fxpipe.capture.leftovers import CarriedError, Leftovers
from fxpipe.capture.record import record_once
from fxpipe.capture.signature import flatten

X = torch.randn(4, 4)


class Keeps(nn.Module):
    """Leaves a table, an activation, a counter and a tensor that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table = self.noise = self.seen = None
        self.count = torch.zeros(())
        self.register_buffer("scale", torch.ones(4))
        self.reads = ""

    def forward(self, x: Tensor) -> Tensor:
        held = getattr(self, self.reads, None)
        y = self.layer(x)
        self.table = torch.arange(4) * self.scale
        self.noise, self.seen = torch.rand(4), y.detach()
        if self.reads == "count":
            self.count = self.count + 1
        return y if held is None else y * held


def recorded(model: nn.Module, mode: str, runs: int = 2):  # type: ignore[no-untyped-def]
    leaves, layout = flatten(((X,), {}))
    return record_once(model, leaves, layout, Decisions(), mode, runs=runs)


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", ["noise", "seen", "count"])
def test_what_a_run_reads_that_the_one_before_left_is_state(name: str, mode: str) -> None:
    model = Keeps()
    model.reads = name
    with pytest.raises(CarriedError, match=f"'{name}'") as error:
        recorded(model, mode)
    assert isinstance(error.value, KeepWholeError)
    assert (error.value.owner, error.value.name) == ("", name)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_table_of_constants_is_none(mode: str) -> None:
    model = Keeps()
    model.reads = "table"
    found = recorded(model, mode)
    ((read, made),) = found.left.made_by.items()
    assert read.op == "get_attr"
    assert made.graph is not found.graph
    assert model.table is None


def test_a_table_of_a_buffer_that_is_written_into_is_state() -> None:
    class Moves(Keeps):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            self.scale.mul_(0.5)
            return y

    model = Moves()
    model.reads = "table"
    with pytest.raises(CarriedError, match="'table'"):
        recorded(model, "real")


def test_attributes_with_other_tensors_are_named() -> None:
    model = Keeps()
    model.reads = "count"
    found = recorded(model, "real", runs=1)
    assert set(found.tensors[""]) == {"table", "noise", "seen", "count"}
    assert found.has_state
    assert {str(node.target).rpartition(".")[2] for node in found.fixed} >= {"scale", "mul"}


def test_nothing_is_left_before_the_first_run() -> None:
    left = Leftovers()
    assert X not in left
    assert not left.is_state(X)
    left.refuse_state(X, "", "")
