"""Models that come as graphs already: traced by torch.fx, or exported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import symbolic_trace

import fxpipe
from tests.equivalence.compare import same
from tests.reference import run_eager_step

ROWS = torch.export.Dim("rows", min=2, max=64)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.norm(self.first(x) * self.scale)
        for block in self.blocks:
            h = block(h)
        rows, width = h.shape
        return {"y": self.head(h).reshape(rows * 1, -1), "mean": h.view(rows, 2, width // 2).mean()}


class Holds(nn.Module):
    """Graphs as parts of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.traced, self.exported = symbolic_trace(Net()), exported(Net())
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.traced(x)["y"]
        return {"y": self.last(self.exported(y.repeat(1, 3)[:, :8])["y"])}


def exported(model: nn.Module, strict: bool = False) -> nn.Module:
    program = torch.export.export(
        model, (torch.randn(4, 8),), dynamic_shapes={"x": {0: ROWS}}, strict=strict
    )
    module: nn.Module = program.module()
    return module


def loss_fn(output: dict[str, Tensor], target: Any = None) -> Tensor:
    return output["y"].square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "traced": lambda: symbolic_trace(Net()),
    "exported": lambda: exported(Net()),
    "exported strictly": lambda: exported(Net(), strict=True),
    "exported for evaluation": lambda: exported(Net().eval()),
    "parts": Holds,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_steps_with_any_number_of_rows(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    eager = copy.deepcopy(model)
    with fxpipe.compile(
        model,
        ["cpu"] * 2,
        4,
        costs="estimate",
        threads_per_rank=1,
        batch_norm="per_micro_batch",
    ) as pipe:
        for rows in (8, 14, 12):
            x = torch.randn(rows, 8)
            wanted = run_eager_step(eager, (x,), chunks=4, loss_fn=loss_fn, deferred_norms=False)
            same(pipe.step(x, loss_fn=loss_fn).loss, wanted.loss, "loss")
        assert len(pipe._recordings._situations) == 1
        assert pipe._made.capture.leaves == ()
    for (label, one), two in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None), label
        if one.grad is not None:
            same(one.grad, two.grad, label)
    for (label, one), two in zip(model.named_buffers(), eager.buffers(), strict=True):
        same(one, two, label)


def test_a_traced_model_still_switches_between_training_and_evaluation() -> None:
    model = symbolic_trace(Net())
    eager = copy.deepcopy(model)
    with fxpipe.compile(model, ["cpu"] * 2, 4, costs="estimate", threads_per_rank=1) as pipe:
        x = torch.randn(8, 8)
        pipe.step(x, loss_fn=loss_fn)
        pipe.eval()
        eager.load_state_dict(model.state_dict())
        eager.eval()
        with torch.no_grad():
            parts = [eager(part)["y"] for part in x.tensor_split(4)]
            same(pipe(x)["y"], torch.cat(parts), "evaluation")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_exported_for_one_batch_size_is_told() -> None:
    model = torch.export.export(Net(), (torch.randn(2, 8),)).module()
    with pytest.raises(AssertionError, match="Guard failed") as caught:
        fxpipe.compile(model, ["cpu"] * 2, 4).capture(torch.randn(8, 8))
    assert any("every batch size" in note for note in caught.value.__notes__)
