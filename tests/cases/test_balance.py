"""A model whose parts cost very unequally."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import Block
from tests.exact import Kind, assert_exact_in_every_mode

WIDTH, MANY = 32, 2000


class Lopsided(nn.Module):
    """A large vocabulary at both ends, a wide block among small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(MANY, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH) for _ in range(6)))
        self.wide = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, WIDTH))
        self.head = nn.Linear(WIDTH, MANY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.wide(self.blocks(self.embed(ids))))


KIND = Kind(Lopsided, lambda rows: ((torch.randint(0, MANY, (rows, 4)),), {}))


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_are_balanced_by_cost_and_not_by_count(stages: int) -> None:
    model = KIND.model()
    args, _ = KIND.data(6)
    capture = fxpipe.trace(model, args)
    costs = fxpipe.estimate(capture, model)
    plan = fxpipe.partition(capture, costs, stages)
    over = [costs.over(plan.nodes_of(stage)) for stage in range(stages)]
    ours = max(cost.forward + cost.backward for cost in over)
    size = len(capture.body)
    count = [range(size * s // stages, size * (s + 1) // stages) for s in range(stages)]
    equal = [costs.over([capture.body[n].name for n in part]) for part in count]
    assert ours < max(cost.forward + cost.backward for cost in equal)
    heads = {plan.stages[node.name] for node in capture.body if node.target == "head"}
    assert heads == {stages - 1}
    assert len(plan.nodes_of(stages - 1)) < size / stages, "the head is worth many blocks"


@pytest.mark.parametrize("stages", [2, 3])
def test_lopsided_stages_are_exact(stages: int) -> None:
    assert_exact_in_every_mode(KIND, stages)
