"""Tables without gradient and masks of truth values that every stage reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, WORDS, each, words
from tests.exact import Kind, assert_exact_in_every_mode

HALF = WIDTH // 2


class Turn(nn.Module):
    """A layer whose result is turned by angles that depend on the position."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, valid: Tensor) -> Tensor:
        left, right = self.layer(x).split(HALF, dim=-1)
        turned = torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)
        return x + turned.masked_fill(~valid[..., None], 0.0)


class Rotary(nn.Module):
    """Tables computed in the first stage, without a batch dimension and without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Turn() for _ in range(3))
        self.register_buffer("speed", torch.linspace(1.0, 0.1, HALF), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        angle = torch.arange(ids.size(1), device=ids.device)[:, None] * self.speed
        cos, sin, valid = angle.cos(), angle.sin(), ids != 0
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, valid)
        return x


class RotaryPair(nn.Module):
    """The tables as a tuple, turned complex, and positions as integers."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
            turn, places = tables
            y = torch.view_as_complex(self.layer(x).unflatten(-1, (HALF, 2)))
            y = torch.view_as_real(y * turn).flatten(-2)
            return torch.tanh(x + y) / (1 + places[:, None])

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            places = torch.arange(ids.size(1), device=ids.device)
            angle = places[:, None] / torch.arange(1, HALF + 1, device=ids.device)
            tables = (torch.polar(torch.ones_like(angle), angle), places)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, tables)
        return x


class SharedBias(nn.Module):
    """A bias by distance that the first layer learns and all layers add: its gradient is a sum."""

    class Layer(nn.Module):
        def __init__(self, learns: bool) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.distance = nn.Embedding(16, 1) if learns else None

        def forward(self, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
            if self.distance is not None:
                places = torch.arange(x.size(1), device=x.device)
                bias = self.distance(places[:, None] - places + 8).squeeze(-1)
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            assert bias is not None
            return x + F.scaled_dot_product_attention(q, k, v, attn_mask=bias), bias

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(self.Layer(n == 0) for n in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x, bias = self.embed(ids), None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x


KINDS = {
    "rotary": Kind(Rotary, words(), cuts=("layers.1", "layers.2")),
    "rotary, complex": Kind(RotaryPair, words(), cuts=("layers.1", "layers.2")),
    "a learned bias": Kind(SharedBias, words(), cuts=("layers.1", "layers.2")),
}


@each(KINDS)
def test_tables_cross_every_boundary(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


def test_only_what_has_a_gradient_is_sent_one() -> None:
    kind = KINDS["rotary"]
    with kind.pipe(kind.model(), 3) as pipe:
        sent = {
            edge.value: edge.is_differentiable
            for edge in pipe.stage_graph.edges
            if edge.producer == 0 and 1 in edge.consumers
        }
    assert sorted(sent.values()) == [False, False, False, True], sent
