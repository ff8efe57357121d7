from __future__ import annotations

import torch
from torch import nn

from fxpipe.capture.slices import Slice, SliceRunner, needed_for
from fxpipe.capture.trace import trace

X = torch.randn(2, 4)


def test_one_value_needs_its_inputs_and_writers() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            table = torch.zeros(4)
            view = table[:2]
            view.add_(1)
            unused = y.sin()
            return (x + table).sum() + unused.sum()

    capture = trace(Model(), (X, X))
    needed = {node.name for node in needed_for(capture.node("add_1"))}
    assert needed == {"x", "zeros", "getitem", "add", "add_1"}
    placeholders = [node for node in capture.graph.nodes if node.op == "placeholder"]
    runner = SliceRunner.of(capture, Model())
    value = runner.evaluate(capture.node("add_1"), dict(zip(placeholders, (X, X), strict=True)))
    assert torch.equal(value, X + torch.tensor([1.0, 1, 0, 0]))


class Writes(nn.Module):
    """Two buffers that share memory, an input and a constant, all written into."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(4))
        self.register_buffer("end", self.table[2:])
        self.constant = (torch.zeros(4),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.end.add_(1)
        x.mul_(2)
        self.constant[0].add_(5)
        self.stored = x * self.constant[0]
        return x + self.table + self.constant[0]


def test_what_is_written_into_is_a_copy() -> None:
    model = Writes()
    capture = trace(model, (X,))
    wanted = capture.graph.output_node().args[0][0]  # type: ignore[index]
    (x,) = (node for node in capture.graph.nodes if node.op == "placeholder")
    given = X.clone()
    for _ in range(2):
        value = SliceRunner.of(capture, model).evaluate(wanted, {x: given})
        assert torch.equal(value, X * 2 + torch.tensor([5.0, 5, 6, 6]))
    assert torch.equal(given, X)
    assert not model.table.any()
    assert not model.constant[0].any()
    assert not hasattr(model, "stored")


def test_slices_know_what_they_write() -> None:
    capture = trace(Writes(), (X,))
    wanted = capture.graph.output_node().args[0][0]  # type: ignore[index]
    part = Slice.of(capture.graph, (wanted,))
    assert not part.runs_modules
    assert len(part.written) == 3
    assert all(node.op != "placeholder" for node in part.nodes)


def test_buffers_are_read_from_the_runners_device() -> None:
    model = Writes()
    capture = trace(model, (X,))
    runner = SliceRunner.of(capture, model)
    assert runner.attribute("table") is model.table
    runner.device = torch.device("cpu")
    assert runner.attribute("table") is model.table
    runner.device = torch.device("meta")
    assert runner.attribute("table").is_meta
    assert not model.table.is_meta
