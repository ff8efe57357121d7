"""Operations that write into their argument, views, and where a stage may begin among them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, Block
from tests.exact import (
    RECOMPUTE,
    Kind,
    assert_exact,
    assert_exact_at_every_cut,
    legal_starts,
    vectors,
)


class BehindTheBoundary(nn.Module):
    """Activations in place, one whose result nobody reads, and a sum in place onto a fresh value."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.one(x))
        y = self.two(h)
        y += h
        self.act(y)
        return self.three(y)


class IntoViews(nn.Module):
    """Writes into a part, a transposed view, a chunk; the base and the views are read after."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        h[:, 0] = 1.0
        left, right = h[:, :4], h[:, 4:]
        left.mul_(0.5)
        y = self.two(h) + torch.cat((right, left), dim=1)
        y.t()[1].add_(1)
        y[:, -1] += y[:, 0].detach()
        return self.three(y)


class OwnBuffer(nn.Module):
    """A buffer of zeros filled piece by piece, and one that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        table = x.new_zeros(x.size(0), 3, WIDTH)
        for n, layer in enumerate(self.layers):
            x = layer(x)
            table[:, n] = x
        return table.sum(1)


class IntoInput(nn.Module):
    """The model writes into its argument before anything else, and once more in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        h = self.one(x + 1)
        x[:, 0] = 0
        return self.two(h + x)


class InputView(nn.Module):
    """An activation in place on a view of the input: the input itself changes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(4, WIDTH), Block()

    def forward(self, x: Tensor) -> Tensor:
        part = F.relu(x[:, :4], inplace=True)
        return self.two(self.one(part) + x)


class SkipIsOverwritten(nn.Module):
    """A copy is read far on; the original is overwritten right after it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        kept = h.clone()
        h.sigmoid_()
        y = F.relu_(self.two(h))
        y = self.three(y)
        return y.add_(kept)


class OutArguments(nn.Module):
    """Results written to where the caller wants them (allowed without gradients alone)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        with torch.no_grad():
            scale = torch.empty_like(h)
            torch.abs(h, out=scale)
            torch.clamp(scale, max=0.5, out=scale)
        return self.two(h * scale)


class Scatters(nn.Module):
    """Index operations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        order = h.detach().argsort(dim=1)
        y = torch.zeros_like(h).scatter_(1, order, h)
        y.index_add_(1, torch.tensor([0, 1]), self.two(x)[:, :2])
        y.masked_fill_(y > 1, 0.5)
        y.index_copy_(1, torch.tensor([3]), h[:, :1])
        return self.three(y)


KINDS = {
    "behind the boundary": Kind(BehindTheBoundary, vectors(WIDTH)),
    "into views": Kind(IntoViews, vectors(WIDTH)),
    "own buffer": Kind(OwnBuffer, vectors(WIDTH)),
    "into the input": Kind(IntoInput, vectors(WIDTH)),
    "a view of the input": Kind(InputView, vectors(WIDTH)),
    "skip is overwritten": Kind(SkipIsOverwritten, vectors(WIDTH)),
    "out=": Kind(OutArguments, vectors(WIDTH)),
    "scatters": Kind(Scatters, vectors(WIDTH)),
}


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", KINDS)
def test_steps_are_exact_at_every_cut(name: str, schedule: str, recompute: str) -> None:
    kind = KINDS[name]
    assert_exact_at_every_cut(kind, schedule=schedule, recompute=recompute)
    cuts = legal_starts(kind)
    if len(cuts) > 1:
        ends = [cuts[0], cuts[-1]]
        assert_exact(kind, 3, cuts=ends, schedule=schedule, recompute=recompute)


def test_a_cut_that_would_break_a_write_is_refused_with_both_lines() -> None:
    kind = KINDS["own buffer"]
    with pytest.raises(fxpipe.PartitionError) as caught:
        kind.pipe(kind.model(), 2, cuts=["layers.1"])
    message = str(caught.value)
    assert message.count("test_in_place.py") >= 2, message


def test_the_batch_is_left_as_the_model_leaves_it() -> None:
    """A model that writes into its arguments writes into the caller's tensors in eager; here not."""
    kind = KINDS["into the input"]
    with kind.pipe(kind.model(), 2, recompute="always") as pipe:
        (x,), _ = kind.data(6)
        before = x.clone()
        pipe.step(x, loss_fn=kind.loss)
        assert torch.equal(x[:, 0], torch.zeros(6)) or torch.equal(x, before)
