"""A step that makes the optimiser's, too, gives what the optimiser's own step after it would give."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import fxpipe
from fxpipe.ir.action import Update
from tests.equivalence.test_schedules import cross_entropy, decoder, squares, unet

Made = tuple[nn.Module, Tensor, Tensor]
Make = Callable[[list[dict[str, Any]]], optim.Optimizer]


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups, each of which lies in all stages."""
    named = list(model.named_parameters())
    decayed = [p for name, p in named if name.endswith("weight")]
    return [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [p for name, p in named if not name.endswith("weight")], "lr": 3e-3},
    ]


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda of: optim.SGD(of, lr=0.1, momentum=0.9),
    "adam": lambda of: optim.Adam(of, lr=1e-2),
    "adamw": lambda of: optim.AdamW(of, lr=1e-2),
}


def train(
    make: Callable[[], Made], optimizer: Make, *, by_stage: bool, **options: Any
) -> dict[str, Any]:
    torch.manual_seed(3)
    model, x, target = make()
    loss_fn = squares if make is unet else cross_entropy
    steps = optimizer(groups(model))
    rates = optim.lr_scheduler.ExponentialLR(steps, 0.5)
    losses = []
    usual = {"chunks": 4, "costs": "estimate", "threads_per_rank": 1, "seed": 0}
    with fxpipe.compile(model, ["cpu"] * 2, **usual, **options) as pipe:
        for _ in range(3):
            told = {"optimizer": steps} if by_stage else {}
            losses.append(pipe.step(x, target=target, loss_fn=loss_fn, **told).loss)
            if not by_stage:
                steps.step()
            steps.zero_grad()
            rates.step()
    state = steps.state_dict()["state"]
    return {
        "losses": losses,
        "weights": list(model.state_dict().values()),
        "state": [value for at in sorted(state) for value in state[at].values()],
    }


RUNS = [
    *((name, per_rank, "adamw") for name, per_rank in (("1f1b", 1), ("gpipe", 2), ("zb-v", 2))),
    *(("zb-h1", 1, "sgd"), ("chimera", 1, "sgd"), ("1f1b", 4, "adam")),
]


@pytest.mark.parametrize(("schedule", "per_rank", "optimizer"), RUNS)
@pytest.mark.parametrize("make", [unet, decoder])
def test_training(make: Callable[[], Made], schedule: str, per_rank: int, optimizer: str) -> None:
    options = {"schedule": schedule, "stages_per_rank": per_rank}
    found, expected = (
        train(make, OPTIMIZERS[optimizer], by_stage=each, **options) for each in (True, False)
    )
    for what, values in expected.items():
        pairs = zip(found[what], values, strict=True)
        assert all(torch.equal(one, other) for one, other in pairs), what


@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_recomputation_and_backends(recompute: str, backend: str) -> None:
    options = {"recompute": recompute, "backend": backend}
    found, expected = (
        train(unet, OPTIMIZERS["adamw"], by_stage=each, **options) for each in (True, False)
    )
    pairs = zip(found["weights"], expected["weights"], strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def stack() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


MINE = """
0F0 0F1 0B0 0B1 0U
1F0 1B0 1F1 1B1 1U
"""


def test_updates_of_a_schedule_of_ones_own() -> None:
    model, x = stack(), torch.randn(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    schedule = fxpipe.Schedule.from_text(MINE)
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, schedule=schedule, costs="estimate") as pipe:
        result = pipe.step(x, loss_fn=squares, target=x, optimizer=optimizer)
        updated = [span.action for span in result.timeline.spans if isinstance(span.action, Update)]
        assert sorted(update.stage for update in updated) == [0, 1]
        reference = stack()
        for rows in x.split(2):
            (squares(reference(rows), rows) / 2).backward()
        optim.SGD(reference.parameters(), lr=0.1).step()
        for one, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(one, other)
        with pytest.raises(fxpipe.ScheduleError, match="there is no optimiser to do it"):
            pipe.step(x, loss_fn=squares, target=x)
        squares(pipe(x), x).backward()  # a call has no updates


def test_only_what_is_complete_is_updated_early() -> None:
    """Here the caller's graph uses a parameter of the first stage, before the pipeline."""
    model, reference, x = stack(), stack(), torch.randn(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        pipe.step(model[0](x), loss_fn=squares, target=x, optimizer=optimizer)
    given = reference[0](x)
    leaf = given.detach().requires_grad_()
    for rows, wanted in zip(leaf.split(2), x.split(2), strict=True):
        (squares(reference(rows), wanted) / 2).backward()
    given.backward(leaf.grad)
    optim.SGD(reference.parameters(), lr=0.1).step()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)


def test_parameters_that_the_pipeline_does_not_know_are_updated_too() -> None:
    class Metric(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            loss: Tensor = self.weight * squares(output, target)
            return loss

    model, metric, x = stack(), Metric(), torch.randn(4, 4)
    stranger = nn.Parameter(torch.ones(1))
    stranger.grad = torch.ones(1)
    known = list(model.parameters())[:-1]
    optimizer = optim.SGD([*known, stranger, *metric.parameters()], lr=0.1)
    last = model[-1].bias.detach().clone()
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        pipe.step(x, loss_fn=metric, target=x, optimizer=optimizer)
    assert stranger.item() == pytest.approx(0.9)
    assert metric.weight.item() == pytest.approx(1 - 0.1 * metric.weight.grad.item())
    assert torch.equal(model[-1].bias, last)  # the optimiser does not have it


def test_gradients_add_up_until_the_step_with_the_optimizer() -> None:
    model, reference, x = stack(), stack(), torch.randn(4, 4)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        pipe.step(x, loss_fn=squares, target=x, scale=0.5)
        pipe.step(x, loss_fn=squares, target=x, scale=0.5, optimizer=optimizer)
    other = optim.AdamW(reference.parameters(), lr=0.1)
    with fxpipe.compile(reference, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        pipe.step(x, loss_fn=squares, target=x, scale=0.5)
        pipe.step(x, loss_fn=squares, target=x, scale=0.5)
    other.step()
    for one, its in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, its)


def test_what_cannot_be_meant() -> None:
    model, x = stack(), torch.randn(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        with pytest.raises(ValueError, match=r"leave optimizer= out, and call scaler\.step"):
            pipe.step(x, loss_fn=squares, target=x, scale=torch.tensor(4.0), optimizer=optimizer)
        with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
            pipe.step(x, loss_fn=squares, target=x, optimizer=optim.SGD)


def test_by_hand() -> None:
    model, reference, x = stack(), stack(), torch.randn(4, 4)
    capture = fxpipe.trace(model, (x[:2],))
    plan = fxpipe.partition(capture, fxpipe.estimate(capture, model), 2)
    graph = fxpipe.link(capture, plan)
    stages = fxpipe.generate(capture, plan, graph, model)
    programs = fxpipe.lower(fxpipe.Schedule.from_text(MINE), graph)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    line = (model, capture, stages, graph, programs, (x,))
    fxpipe.run(*line, target=x, loss_fn=squares, optimizer=optimizer)
    for rows in x.split(2):
        (squares(reference(rows), rows) / 2).backward()
    optim.SGD(reference.parameters(), lr=0.1).step()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(fxpipe.ScheduleError, match="pass optimizer="):
        fxpipe.run(*line, target=x, loss_fn=squares)


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_step_that_fails_midway_says_which_stages_are_updated(backend: str) -> None:
    """The last stage is through when the first one fails in its last backward."""
    model, x = stack(), torch.randn(4, 4)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    schedule = fxpipe.Schedule.from_text("0F0 0F1 0B0 0B1 0U\n1F0 1B0 1F1 1B1 1U")
    options = {"schedule": schedule, "costs": "estimate", "backend": backend, "cuts": ["2"]}
    calls = [0]

    def fails(grad: Tensor) -> None:
        calls[0] += 1
        if calls[0] == 2:
            while any(map(torch.equal, model[2:].parameters(), start[4:])):
                time.sleep(0.01)  # until the other rank is through
            raise ZeroDivisionError

    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, **options) as pipe:
        told = {"loss_fn": squares, "target": x, "optimizer": optimizer}
        pipe.capture(x)
        hook = model[0].weight.register_hook(fails)
        with pytest.raises(ZeroDivisionError) as caught:
            pipe.step(x, **told)
        hook.remove()
        assert "made or begun for stages 1, and for no other" in "".join(caught.value.__notes__)
        same = [torch.equal(p, q) for p, q in zip(model.parameters(), start, strict=True)]
        assert same == [True] * 4 + [False] * 4
        assert pipe.steps_done == 0
        optimizer.zero_grad()
        pipe.step(x, **told)
    assert len(optimizer.state) == 8


def test_an_optimizer_that_fails_when_all_is_done() -> None:
    """The step has been made: its gradients are there, and the update can be made again."""
    model, reference, x = stack(), stack(), torch.randn(4, 4)
    optimizers = [optim.SGD(each.parameters(), lr=0.1) for each in (model, reference)]

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    hook = optimizers[0].register_step_pre_hook(fails)
    with fxpipe.compile(model, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        with pytest.raises(ZeroDivisionError):
            pipe.step(x, loss_fn=squares, target=x, optimizer=optimizers[0])
        assert pipe.steps_done == 1
    hook.remove()
    with fxpipe.compile(reference, ["cpu"] * 2, chunks=2, costs="estimate") as pipe:
        pipe.step(x, loss_fn=squares, target=x)
    for optimizer in optimizers:
        optimizer.step()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)
