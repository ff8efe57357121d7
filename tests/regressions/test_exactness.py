"""Found by the property of exactness (tests/properties/test_exactness.py): one test per cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fxpipe
from tests.losses import mean_square
from tests.reference import run_eager_step


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


class Noisy(nn.Module):
    """A loss that draws from whatever generator it is told."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.generator = torch.Generator().manual_seed(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, output: Tensor, target: Any = None) -> Tensor:
        match self.source:
            case "torch":
                output = output * torch.rand_like(output)
            case "dropout":
                output = self.drop(output)
            case "held":
                output = output * torch.rand(output.shape, generator=self.generator)
            case "random":
                output = output * random.random()
            case "numpy":
                output = output * float(np.random.rand())
        return output.square().mean()


def seed_all() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("source", ["torch", "dropout", "held", "random", "numpy"])
@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_loss_that_draws_is_computed_again_with_the_same_numbers(
    source: str, recompute: str, backend: str
) -> None:
    """It drew anew: the gradients were those of another loss than the one that was told."""
    model, eager = blocks(), blocks()
    seed_all()
    expected = run_eager_step(eager, (rows(),), chunks=3, loss_fn=Noisy(source))
    after = torch.rand(()), random.random(), np.random.rand()
    options = {"recompute": recompute, "backend": backend, "costs": "estimate"}
    with fxpipe.compile(model, ["cpu"] * 2, chunks=3, **options) as pipe:
        pipe.capture(rows())
        seed_all()
        loss_fn = Noisy(source)
        found = pipe.step(rows(), loss_fn=lambda output, target: loss_fn(output))
    assert torch.equal(found.loss, expected.loss)
    assert (torch.rand(()), random.random(), np.random.rand()) == after
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def train_once(
    model: nn.Module, stages: int, recompute: str, change: Callable[[], object] | None = None
) -> list[Tensor]:
    """Loss and gradients of a step; if there is a change, of one after it."""
    cuts = {1: None, 2: ["1"], 3: ["1", "2"]}[stages]
    options: dict[str, Any] = {"recompute": recompute, "cuts": cuts, "seed": 1}
    with fxpipe.compile(model, ["cpu"] * stages, chunks=3, costs="estimate", **options) as pipe:
        if change is not None:
            pipe.step(rows(), loss_fn=mean_square)
            model.zero_grad()
            pipe.steps_done = 0
            change()
        loss = pipe.step(rows(), loss_fn=mean_square).loss
    return [loss, *(p.grad for p in model.parameters())]


def assert_alike(found: list[list[Tensor]]) -> None:
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_hooks_that_draw_have_keys_like_forwards() -> None:
    """Around a module that a stage calls the keys began after its hooks, and ended before them."""
    found = []
    for stages in (1, 2, 3):
        for recompute in ("never", "always"):
            model = blocks()
            model[1].register_forward_hook(lambda module, args, y: y + torch.rand_like(y))
            model[2][0].register_forward_pre_hook(lambda module, args: (F.dropout(args[0], 0.3),))
            found.append(train_once(model, stages, recompute))
    assert_alike(found)


class Path(nn.Module):
    """Stochastic depth that is off at first: its Python does not draw at all then."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        return x * torch.empty(len(x), 1).bernoulli_(1 - self.rate) / (1 - self.rate)


class WithPath(nn.Module):
    """A layer with all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.path, self.drop, self.rate = nn.Linear(4, 4), Path(), nn.Dropout(0), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.path(F.dropout(self.drop(self.layer(x)), self.rate, self.training))


@pytest.mark.parametrize("what", ["path", "layer", "function"])
def test_a_rate_that_rises_from_zero(what: str) -> None:
    """A module that a stage calls drew without keys: other numbers when its forward ran again."""
    found = []
    for stages in (1, 2, 3):
        for recompute in ("never", "always"):
            torch.manual_seed(0)
            model = nn.Sequential(*(WithPath() for _ in range(3)))

            def rise(model: nn.Module = model) -> None:
                for layer in model:
                    match what:
                        case "path":
                            layer.path.rate = 0.5
                        case "layer":
                            layer.drop.p = 0.5
                        case "function":
                            layer.rate = 0.5

            found.append(train_once(model, stages, recompute, rise))
    assert_alike(found)
    assert not torch.equal(found[0][0], train_once(model.eval(), 1, "never")[0]), "it does draw"


class WritesFirst(nn.Module):
    """Writes into one argument, and reads the other after that."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return self.two(self.one(x) + y)


def test_inputs_that_share_memory_and_are_written_into() -> None:
    """The other input kept its old values: each micro-batch writes into a copy."""
    model = WritesFirst()
    with fxpipe.compile(model, ["cpu"] * 2, chunks=3, costs="estimate") as pipe:
        wide = rows(width=8)
        pipe.step(wide[:, :4], wide[:, 4:], loss_fn=mean_square)
        for other in (lambda x: x, lambda x: x.view(6, 4), lambda x: x.detach().flip(0)):
            x = rows()
            y = other(x)
            if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                pipe.step(x, y, loss_fn=mean_square)
                continue
            with pytest.raises(ValueError, match="'x', and 'y' is in the same memory"):
                pipe.step(x, y, loss_fn=mean_square)
            with pytest.raises(ValueError, match="'x', and 'y' is in the same memory"):
                pipe(x, y)
            assert torch.equal(x, rows())


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_an_iteration_that_stops_in_a_forward_is_told_as_it_is(backend: str) -> None:
    """It came out as a RuntimeError of a generator."""
    model = blocks()
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=3, costs="estimate", backend=backend, cuts=["1"]
    ) as pipe:
        pipe.step(rows(), loss_fn=mean_square)
        handle = model[1].register_forward_hook(lambda *_: next(iter(())))
        with pytest.raises(StopIteration) as caught:
            pipe.step(rows(), loss_fn=mean_square)
        assert any("stage 1 of 2" in note for note in caught.value.__notes__)
        with pytest.raises(StopIteration), torch.no_grad():
            pipe(rows())
        handle.remove()
        pipe.step(rows(), loss_fn=mean_square)


def test_a_target_with_a_graph_is_told_to_be_detached() -> None:
    """Torch's message alone, of a second backward, says nothing of the cause."""
    teacher = nn.Linear(4, 4)
    with fxpipe.compile(blocks(), ["cpu"] * 2, chunks=3, costs="estimate") as pipe:
        with pytest.raises(RuntimeError, match="a second time") as caught:
            pipe.step(rows(), target=teacher(rows()), loss_fn=F.mse_loss)
        assert "a target with a graph must be detached" in caught.value.__notes__[-1]
        pipe.step(rows(), target=teacher(rows()).detach(), loss_fn=F.mse_loss)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_around_a_call(reentrant: bool) -> None:
    """With an integer seed the call that is made again counted as another step, and drew anew."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    x = rows().requires_grad_()
    grads = []
    for seed in (None, 3):
        with fxpipe.compile(model, ["cpu"] * 2, chunks=3, costs="estimate", seed=seed) as pipe:

            def run(x: Tensor, pipe: Any = pipe) -> Tensor:
                return pipe(x * 1).exp()

            pipe.capture(x)
            for around in (False, True):
                model.zero_grad()
                torch.manual_seed(1)
                y = checkpoint(run, x, use_reentrant=reentrant) if around else run(x)
                if around and seed is not None:
                    with pytest.raises(fxpipe.ExecutionError, match="runs this call again"):
                        y.sum().backward()
                    continue
                y.sum().backward()
                grads.append(model[0].weight.grad)
    assert torch.equal(grads[0], grads[1])
