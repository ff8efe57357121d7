"""Losses inside the model and outside, auxiliary ones, and means over something else than rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, WORDS, Block, each
from tests.exact import RECOMPUTE, SCHEDULES, Batch, Kind, assert_exact_in_every_mode, vectors


class TokenLoss(nn.Module):
    """Returns its own loss, a mean over the labels that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(WORDS, WIDTH), Block()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.block(self.embed(ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def tokens(rows: int) -> Batch:
    ids = torch.randint(0, WORDS, (rows, 6))
    labels = ids.roll(-1, 1)
    labels[rows // 2 :, 1:] = -100
    return (ids, labels), {}


class Expert(nn.Module):
    """A mixture whose balance adds to an auxiliary loss that is handed through the model."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        share = self.router(x).softmax(-1)
        y = sum(share[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))
        return x + y, extra + share.square().mean()


class Mixtures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Expert(), Expert(), Expert()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        extra = x.new_zeros(())
        x, extra = self.one(x, extra)
        x, extra = self.two(x, extra)
        x, extra = self.three(x, extra)
        return x, extra


class Deep(nn.Module):
    """A loss at every depth, added up; and the parts for the log."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(3))

    def forward(self, x: Tensor, wanted: Tensor) -> dict[str, Any]:
        losses = []
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x)
            losses.append(F.mse_loss(head(x), wanted))
        return {"loss": torch.stack(losses).sum(), "parts": losses}


class Reduced(nn.Module):
    """Half precision inside, single precision out: what autocast does to a model by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.three(torch.relu(self.two(torch.relu(self.one(x))))).float()


def with_extra(output: Any, target: Any) -> Tensor:
    y, extra = output
    return y.square().mean() + 0.01 * extra


KINDS = {
    "inside": Kind(TokenLoss, tokens, loss=None, cuts=("block", "head")),
    "auxiliary": Kind(Mixtures, vectors(WIDTH), loss=with_extra, cuts=("two", "three")),
    "deep": Kind(
        Deep,
        lambda rows: ((torch.randn(rows, WIDTH), torch.randn(rows, 1)), {}),
        loss=None,
        cuts=("blocks.1", "blocks.2"),
    ),
}


@each(KINDS)
def test_losses_are_eager_s(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


def uneven() -> tuple[Tensor, Tensor]:
    """Of four micro-batches of two rows the first has no valid label at all, the second two."""
    torch.manual_seed(5)
    ids = torch.randint(0, WORDS, (8, 6))
    labels = ids.roll(-1, 1)
    labels[0:2] = -100
    labels[2:4, 1:] = -100
    return ids, labels


def of_tokens(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)


class Logits(TokenLoss):
    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.block(self.embed(ids)))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_mean_over_tokens_outside_of_the_model(stages: int, recompute: str) -> None:
    """The drop-in call hands the whole batch's logits to the loss: the mean is over all tokens."""
    kind = Kind(Logits, lambda rows: (tokens(rows)[0][:1], {}), cuts=("block", "head"))
    ids, labels = uneven()
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, stages, recompute=recompute, chunks=4) as pipe:
        loss = of_tokens(pipe(ids), labels)
        loss.backward()
    expected = of_tokens(eager(ids), labels)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def labelled(args: Any, kwargs: Any, target: Any) -> int:
    return int((args[1] != -100).sum())


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("chunks", [4, 8])
def test_a_mean_over_tokens_inside_of_the_model(
    stages: int, schedule: str, recompute: str, chunks: int
) -> None:
    """Weighted by labels that count; a micro-batch without any, whose loss is NaN, is left out."""
    kind = KINDS["inside"]
    ids, labels = uneven()
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, stages, schedule=schedule, recompute=recompute, chunks=chunks) as pipe:
        result = pipe.step(ids, labels, weights=labelled)
    expected = eager(ids, labels)
    expected.backward()
    torch.testing.assert_close(result.loss, expected)
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_autocast_around_a_step_reaches_every_stage(
    backend: str, recompute: str, schedule: str, stages: int
) -> None:
    seen: list[torch.dtype] = []
    torch.manual_seed(0)
    model = Reduced()
    kind = Kind(Reduced, vectors(WIDTH), cuts=("two", "three"))
    model.two.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with (
        torch.autocast("cpu", torch.bfloat16),
        kind.pipe(model, stages, backend=backend, recompute=recompute, schedule=schedule) as pipe,
    ):
        args, _ = kind.data(6)
        seen.clear()
        result = pipe.step(*args, loss_fn=kind.loss)
    assert set(seen) == {torch.bfloat16}
    assert result.output.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
