from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpipe.analysis.reuse import reused_weights
from fxpipe.capture.trace import trace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.norm = nn.LayerNorm(8)
        self.once, self.twice = nn.Linear(8, 8), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.free = nn.Parameter(torch.ones(8, 8))
        self.free_twice = nn.Parameter(torch.ones(8, 8))
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.norm(self.table(ids)))
        x = self.twice(self.twice(self.once(x)))
        x = self.layer(self.attention(x, x, x)[0])
        x = self.recurrent(x)[0] @ self.free
        x = F.linear(F.linear(x, self.free_twice), self.free_twice)
        return self.head(x)


def test_weights_that_are_used_more_than_once() -> None:
    model = Net()
    capture = trace(model, (torch.randint(0, 7, (2, 3)),))
    reused = reused_weights(capture, model)
    names = [name for name, p in model.named_parameters() if p in reused]
    assert [n for n in names if not n.startswith("recurrent.")] == [
        "free_twice",
        "twice.weight",
        "twice.bias",
    ]
    assert len(names) == 3 + 4
