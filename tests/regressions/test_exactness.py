"""Found by the property of exactness (tests/properties/test_exactness.py): one test per cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.reference import run_eager_step


def mean_square(output: Tensor, target: Any = None) -> Tensor:
    return output.square().mean()


def rows(count: int = 6, width: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


class Gated(nn.Module):
    """Takes any number of tensors, and a keyword that has no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, *given: Tensor, gate: Tensor) -> Tensor:
        return self.layers(given[0] + given[-1]) * gate


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_rule_for_a_keyword_is_not_taken_for_one_of_the_first_of_many_arguments(
    chunks: int,
) -> None:
    """Keyword-only names were counted as if they named what ``*given`` holds."""
    torch.manual_seed(0)
    model, args, kwargs = Gated(), (rows(), rows(seed=2)), {"gate": rows(1)[0]}
    eager = run_eager_step(
        model, args, kwargs, chunks=chunks, loss_fn=mean_square, dims=(0, 0, None)
    )
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=chunks, costs="estimate", split={"gate": fxpipe.Replicate()}
    ) as pipe:
        result = pipe.step(*args, **kwargs, loss_fn=mean_square)
    assert torch.equal(result.loss, eager.loss)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))


@pytest.mark.parametrize("way", ["step", "call"])
def test_a_step_that_fails_has_drawn_nothing(way: str) -> None:
    """The seed of its random numbers stayed drawn from the caller's generator."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))

    def fails(output: Tensor, target: Any = None) -> Tensor:
        torch.rand(3)
        raise ZeroDivisionError

    with fxpipe.compile(model, ["cpu"] * 2, chunks=3, costs="estimate") as pipe:
        before = torch.get_rng_state()
        if way == "call":
            model[2].register_forward_hook(lambda module, args, output: fails(output))
            with pytest.raises(ZeroDivisionError):
                pipe(rows())
        else:
            with pytest.raises(ZeroDivisionError):
                pipe.step(rows(), loss_fn=fails)
        assert torch.equal(torch.get_rng_state(), before)


class Moded(nn.Module):
    """Normalises by the batch in training, and drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("batch_norm", ["deferred", "per_micro_batch"])
@pytest.mark.parametrize("recompute", ["except_last", "always"])
@pytest.mark.parametrize("training", [True, False])
def test_a_forward_that_runs_again_finds_the_mode_of_the_first_time(
    training: bool, recompute: str, batch_norm: str
) -> None:
    """The mode was read when the backward came: with recomputation it was another model's gradient."""
    torch.manual_seed(0)
    grads = []
    model = Moded().train(training)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for mode in (training, not training):
        model.load_state_dict(start)
        model.zero_grad()
        with fxpipe.compile(
            model.train(training),
            ["cpu"] * 2,
            chunks=2,
            recompute=recompute,
            batch_norm=batch_norm,
            costs="estimate",
        ) as pipe:
            output = pipe(rows())
            pipe.train(mode)
            mean_square(output).backward()
        assert model.training is mode
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *grads))


@pytest.mark.parametrize("change", ["in place", "data", "running statistics"])
def test_weights_that_were_changed_before_a_recomputation_are_refused(change: str) -> None:
    """The forward ran again with the new weights: gradients of something that nobody had computed."""
    model = Moded().eval()
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, recompute="always", costs="estimate") as pipe:
        output = pipe(rows())
        weight = model.layers[0].weight
        if change == "data":
            weight.data = weight.data * 2
        elif change == "in place":
            with torch.no_grad():
                weight.mul_(2)
        else:
            with torch.no_grad():
                pipe.train()(rows())
            pipe.eval()
        with pytest.raises(fxpipe.ExecutionError, match="has been changed since the forward"):
            mean_square(output).backward()
        mean_square(pipe(rows())).backward()


class NormedTwice(nn.Module):
    """One batch norm, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.norm(self.first(x))).tanh())


@pytest.mark.parametrize("batch_norm", ["deferred", "per_micro_batch"])
def test_a_cut_of_evaluation_that_training_cannot_have_is_refused(batch_norm: str) -> None:
    """Both modes have the same graph, so the cut was taken over: each stage counted calls of its own."""
    model = NormedTwice().eval()
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=2, cuts=["second"], costs="estimate", batch_norm=batch_norm
    ) as pipe:
        with torch.no_grad():
            expected = torch.cat([model(part) for part in rows().chunk(2)])
            assert torch.equal(pipe(rows()), expected)
        pipe.train()
        with pytest.raises(fxpipe.PartitionError, match="capture this kind of call first"):
            pipe.step(rows(), loss_fn=mean_square)
        pipe.eval()
        pipe.step(rows(), loss_fn=mean_square)


def test_cuts_of_ones_own_choice_suit_training_as_well() -> None:
    """A model is often evaluated first: its cuts keep the calls of a batch norm together."""
    model = nn.Sequential(nn.Linear(4, 4), NormedTwice(), nn.Linear(4, 4)).eval()
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        with torch.no_grad():
            pipe(rows())
        pipe.train()
        assert pipe.step(rows(), loss_fn=mean_square).loss.isfinite()
