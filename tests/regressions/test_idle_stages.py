"""Calls that need nothing of what a stage has: the stage is there, and computes nothing.

Such a call was once refused ("does not fit the stages"), because every stage had to have a node.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.exact import Kind, assert_exact, assert_exact_at_every_cut, mean_square, vectors
from tests.reference import run_eager_step


class Auxiliary(nn.Module):
    """A head for training alone, after all others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.side = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).relu()
        found = {"out": self.head(h)}
        if self.training:
            found["side"] = self.side(h)
        return found


class Augmented(nn.Module):
    """A first layer for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.warp, self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = self.warp(x)
        return self.head(self.body(x).relu())


class Middle(nn.Module):
    """A stage between two others that evaluation skips."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.noise, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.training:
            h = self.noise(h)
        return self.head(h)


class Doubled(nn.Module):
    """Whether gradients are wanted decides on the one node that a stage may have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if h.requires_grad:
            h = h * 2
        return self.last(h)


KINDS = {
    "last": Kind(Auxiliary, vectors(8), cuts=("side",)),
    "first": Kind(Augmented, vectors(8), cuts=("body",)),
    "middle": Kind(Middle, vectors(8), cuts=("noise", "head")),
    "by grad mode": Kind(Doubled, vectors(8), cuts=("mul", "last")),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_evaluation_skips_a_stage(kind: Kind, schedule: str, recompute: str) -> None:
    assert_exact(kind, len(kind.cuts) + 1, schedule=schedule, recompute=recompute)


def test_wherever_a_residual_branch_is_cut() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                h = layer(x)
                if self.training:
                    mask = h.new_empty((h.shape[0], 1)).bernoulli_(0.7)
                    h = h * mask.div_(0.7)
                x = x + h
            return x

    assert_exact_at_every_cut(Kind(Dropped, vectors(8), random=True))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if memory is None:
            memory = self.encoder(x)
        return self.decoder(x + memory), memory


class Encoded(EncoderDecoder):
    def forward(self, x: Tensor, only: str = "") -> Any:
        memory = self.encoder(x)
        return memory if only else self.decoder(memory)


@pytest.mark.parametrize("training", [True, False])
def test_a_decoder_alone(training: bool) -> None:
    kind = Kind(EncoderDecoder, vectors(8), cuts=("encoder.2", "decoder", "decoder.2"))
    model, twin = kind.model(), kind.model()
    x, memory = torch.randn(6, 8), torch.randn(6, 8, requires_grad=True)
    with kind.pipe(model, 4) as pipe:
        model.train(training)
        twin.train(training)
        with torch.no_grad():
            assert all(map(torch.equal, pipe(x, memory), twin(x, memory)))
        found = pipe.step(inputs=((x, memory), {}), loss_fn=mean_square)
        expected = run_eager_step(twin, (x, memory), chunks=3, loss_fn=mean_square)
    assert memory.grad is not None
    (wanted,) = expected.input_grads[1:]
    assert wanted is not None
    assert torch.equal(memory.grad, wanted)
    assert found.loss is not None
    assert expected.loss is not None
    assert torch.equal(found.loss, expected.loss)
    for name, parameter in model.named_parameters():
        wanted = twin.get_parameter(name).grad
        assert (parameter.grad is None) == (wanted is None) == name.startswith("encoder")
        if wanted is not None and parameter.grad is not None:
            assert torch.equal(parameter.grad, wanted)


def test_an_encoder_alone() -> None:
    kind = Kind(Encoded, vectors(8), cuts=("encoder.2", "decoder", "decoder.2"))
    model = kind.model()
    x = torch.randn(6, 8)
    with kind.pipe(model, 4) as pipe:
        assert torch.equal(pipe(x), model(x))
        memory = pipe(x, only="encoder")
        assert torch.equal(memory, model(x, only="encoder"))
        memory.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())
    assert all(parameter.grad is None for parameter in model.decoder.parameters())


def test_micro_batches_of_one_step_with_and_without_a_stage() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.extra, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, asked: Tensor) -> Tensor:
            h = self.first(x)
            if asked.any():
                h = self.extra(h)
            return self.last(h)

    asked = torch.tensor([1, 0, 0, 0, 1, 1])[:, None].bool()
    kind = Kind(
        Sometimes, lambda rows: ((torch.randn(rows, 8), asked[:rows]), {}), cuts=("extra", "last")
    )
    model, twin = kind.model(), kind.model()
    batch = kind.data(6)
    with kind.pipe(model, 3) as pipe:
        for _ in range(2):
            found = pipe.step(inputs=batch, loss_fn=mean_square)
            expected = run_eager_step(twin, *batch, chunks=3, loss_fn=mean_square)
    assert found.loss is not None
    assert expected.loss is not None
    assert torch.equal(found.loss, expected.loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, twin.get_parameter(name).grad)
