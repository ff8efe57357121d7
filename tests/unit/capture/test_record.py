from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture import record as record_module
from fxpipe.capture.fallback import Decisions
from fxpipe.capture.record import record, record_once
from fxpipe.capture.signature import flatten
from tests.unit.capture import small

X = torch.randn(2, 4)
CALL = flatten(((X,), {}))


def test_recording_of_a_call() -> None:
    recording = record(small.Mlp(), *CALL, Decisions(), "real")
    assert [node.name for node in recording.graph.nodes] == ["x", "linear", "relu", "output"]
    assert [node.name for node in recording.placeholders if node is not None] == ["x"]
    assert recording.outputs[0].shape == (2, 4)
    assert recording.layout.unflatten(["y"]) == "y"
    assert not recording.drew_python


def test_decisions_grow_until_the_recording_succeeds() -> None:
    decisions = Decisions()
    model = small.Chain(small.Decides(), small.Keeps(), small.PythonRandom(), small.Mlp())
    record(model, *CALL, decisions, "real")
    assert list(decisions.leaves) == ["parts.0", "parts.1", "parts.2"]
    assert decisions.watch_random


def test_values_of_nodes_can_be_kept() -> None:
    model = small.Mlp()
    recording = record_once(model, *CALL, Decisions(), "real", keep_values=True)
    assert torch.equal(recording.values["relu"][0], model(X))
    assert record_once(model, *CALL, Decisions(), "real").values == {}


def test_inputs_are_not_written_into() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2)

    x = torch.ones(2, 4)
    recording = record(Writes(), *flatten(((x,), {})), Decisions(), "real")
    assert x.unique().tolist() == [1]
    x_node, mul, _ = recording.graph.nodes
    assert (x_node.meta["mutates"], mul.meta["mutates"]) == ((), (0,))


class Catches(nn.Module):
    """Takes the recorder's refusal for an error of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return x if self.linear(x).sum() > 0 else -x
        except Exception:
            return x * 0


def test_refusals_that_the_model_catches_count() -> None:
    decisions = Decisions()
    record(small.Chain(small.Mlp(), Catches()), *CALL, decisions, "real")
    assert list(decisions.leaves) == ["parts.1"]


def test_third_layer_of_a_kind_needs_no_start_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    once = record_module.record_once

    def counted(*args: Any, **kwargs: Any) -> Any:
        starts.append(1)
        return once(*args, **kwargs)

    monkeypatch.setattr(record_module, "record_once", counted)
    decisions = Decisions()
    record(small.Chain(*(small.Decides() for _ in range(6))), *CALL, decisions, "real")
    assert len(starts) == 3
    assert list(decisions.leaves) == [f"parts.{index}" for index in range(6)]
