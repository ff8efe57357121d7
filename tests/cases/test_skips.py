"""Values that are read further on than in the next stage."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, WORDS, Block, each, images, words
from tests.exact import Kind, assert_exact_in_every_mode, vectors


class JumpsOver(nn.Module):
    """One value for the next stage and for the one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = Block(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        early = self.enter(x)
        late = self.leave(self.middle(early))
        return late - early / 3


class ReadEverywhere(nn.Module):
    """Every stage reads the first one's value, some more than once, and it is an output too."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = Block(), Block(), Block()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = self.enter(x)
        y = self.middle(early) * early.sigmoid() + early
        y = self.leave(y + early.sin()) + early * early
        return y, early


class Hourglass(nn.Module):
    """Skips within skips, as U-Nets have them."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Conv2d(2, 4, 3, padding=1)
        self.inner = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(6, 6, 3, padding=1)
        self.widen = nn.ConvTranspose2d(12, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, picture: Tensor) -> Tensor:
        wide = F.relu(self.outer(picture))
        small = F.relu(self.inner(wide))
        lowest = F.relu(self.bottom(small))
        again = F.relu(self.widen(torch.cat((lowest, small), dim=1)))
        return self.last(torch.cat((again, wide), dim=1))


class InputAgain(nn.Module):
    """The model's integer input is read in the first stage and in the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.middle = Block()
        self.late = nn.Embedding(WORDS, WIDTH)
        self.leave = Block()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.middle(self.embed(ids))
        return self.leave(x + self.late(ids))


class HandsOn(nn.Module):
    """A stage in the middle returns one of its arguments as it is."""

    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, kept: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
            return kept, self.layer(changed)

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = Block(), self.Middle(), Block()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.enter(x)
        kept, changed = self.middle(kept, 2 * kept)
        return self.leave(kept) + changed


class Collects(nn.Module):
    """The results of all layers are stacked at the end: skips from every stage to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(x)
        return torch.stack(seen, dim=1).mean(dim=1)


KINDS = {
    "over a stage": Kind(JumpsOver, vectors(WIDTH), cuts=("middle", "leave")),
    "read in every stage": Kind(ReadEverywhere, vectors(WIDTH), cuts=("middle", "leave")),
    "nested": Kind(Hourglass, images(), cuts=("inner", "bottom")),
    "nested, cut below": Kind(Hourglass, images(), cuts=("bottom", "widen")),
    "an input": Kind(InputAgain, words(), cuts=("middle", "leave")),
    "passed on": Kind(HandsOn, vectors(WIDTH), cuts=("middle", "leave")),
    "collected": Kind(Collects, vectors(WIDTH), cuts=("layers.1", "layers.3")),
}


@each(KINDS)
def test_skips_are_exact(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


def test_skips_go_straight_to_their_reader() -> None:
    kind = KINDS["nested, cut below"]
    with kind.pipe(kind.model(), 3) as pipe:
        routes = {(edge.producer, edge.consumers) for edge in pipe.stage_graph.edges}
    assert (0, (2,)) in routes, "the outer skip passes over the middle stage"
    kind = KINDS["nested"]
    with kind.pipe(kind.model(), 3) as pipe:
        routes = {(edge.producer, edge.consumers) for edge in pipe.stage_graph.edges}
    assert (0, (1, 2)) in routes, "it is sent to both of its readers"
