"""Values that hooks take of modules inside a call: the call is watched for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe import ops
from tests.unit.codegen.test_objects import X, sources


class Twice(nn.Module):
    """Calls one block twice and returns a part of the second result."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pair(self.pair(x)["whole"])["whole"]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.linear(x)
        return {"whole": y, "weights": (y.softmax(-1), None)}


class Collects(nn.Module):
    """Collects by hooks what the pairs return beside their results."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Twice() for _ in range(2))
        self.open = False
        self.seen: list[torch.Tensor] = []
        for block in self.blocks:
            block.pair.register_forward_hook(self.collect)

    def collect(self, module: nn.Module, args: Any, result: dict[str, Any]) -> None:
        if self.open:
            self.seen.append(result["weights"][0])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.open = True
        self.seen.clear()
        for block in self.blocks:
            x = block(x)
        self.open = False
        return x.exp(), *self.seen


def test_a_call_is_watched_for_what_hooks_take() -> None:
    model = Collects()
    (lines, _), results = sources(model, "exp")
    assert lines[:6] == [
        'blocks_0_watched = ops.Watched(self.blocks_0, "pair")',
        "blocks_0_pair_linear_1 = blocks_0_watched(x)",
        'softmax = blocks_0_watched["pair"][0]["weights"][0]',
        'softmax_1 = blocks_0_watched["pair"][1]["weights"][0]',
        "del blocks_0_watched",
        'blocks_1_watched = ops.Watched(self.blocks_1, "pair")',
    ]
    expected, *seen = model(X)
    assert all(map(torch.equal, results, (expected, *seen)))
    assert [len(block.pair._forward_hooks) for block in model.blocks] == [1, 1]


def test_nothing_stays_on_the_module() -> None:
    block = Twice()
    watched = ops.Watched(block, "pair", "pair.linear")
    watched(X)
    watched.forward(X)
    assert len(watched["pair"]) == 2
    assert torch.equal(watched["pair.linear"][1], watched["pair"][1]["whole"])
    with pytest.raises(RuntimeError):
        watched(torch.ones(3))
    assert not block.pair._forward_hooks
    assert not block.pair.linear._forward_hooks
