"""What a pipeline makes of its schedule: predictions, recomputations, forwards alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import ScheduleError
from fxpipe.schedules.insert import with_recomputes
from fxpipe.schedules.registry import SCHEDULES

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Counted(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return super().forward(x).tanh()


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Counted(16, 16) for _ in range(4)))


def squares(output: Tensor, target: object) -> Tensor:
    return output.square().mean()


def compiled(module: nn.Module, **options: object) -> fxpipe.Pipeline:
    chosen = {"chunks": 4, "costs": "estimate", "backend": "inline", "example_args": (X,)}
    return fxpipe.compile(module, ["cpu", "cpu"], **{**chosen, **options})


def test_a_prediction_knows_of_recomputation() -> None:
    with compiled(model(), schedule="gpipe") as pipe:
        never, last, always = (
            pipe.replace(recompute=mode).predict() for mode in ("never", "except_last", "always")
        )
        assert never.makespan < last.makespan < always.makespan
        costs = pipe.costs.of_stages(pipe.plan, pipe.stage_graph)
        saved, read = costs[0].saved_bytes, costs[0].input_bytes
        assert 0 < read < saved
        assert never.peak_bytes[0] == 4 * saved
        assert last.peak_bytes[0] == 3 * read + saved + (saved - read)
        assert always.peak_bytes[0] == 3 * read + saved
        again = pipe.replace(recompute="always")
        assert again.report() != pipe.report()


def test_what_was_searched_is_what_is_predicted() -> None:
    with compiled(model()) as pipe:
        costs, graph = pipe.costs.of_stages(pipe.plan, pipe.stage_graph), pipe.stage_graph
        schedule = with_recomputes(SCHEDULES["gpipe"](2, 2, 4), {0})
        told = fxpipe.simulate(fxpipe.lower(schedule, graph), costs, None, graph)
        predicted = pipe.replace(schedule=schedule).predict()
        assert predicted.peak_bytes == told.peak_bytes
        plain = [pipe.costs.over(pipe.plan.nodes_of(stage)) for stage in range(2)]
        assert fxpipe.simulate(fxpipe.lower(schedule, graph), plain, None, graph) == told


def test_a_recomputation_of_the_schedule_is_run() -> None:
    schedule = with_recomputes(SCHEDULES["gpipe"](2, 2, 4), {0})
    found, counts = [], []
    for each in ("gpipe", schedule):
        module = model()
        with compiled(module, schedule=each) as pipe:
            Counted.calls = 0
            pipe.step(X, loss_fn=squares)
        counts.append(Counted.calls)
        found.append([parameter.grad for parameter in module.parameters()])
    assert counts == [4 * 4, 4 * 4 + 4 * 2]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_step_of_forwards_alone_is_no_training() -> None:
    module = model()
    with compiled(module, schedule="forward") as pipe:
        with pytest.raises(ScheduleError, match=r"forwards only.*Use pipe\(x\)"):
            pipe.step(X, loss_fn=squares)
        with pytest.raises(ScheduleError, match="forwards only"):
            pipe.step(X, loss_fn=squares, optimizer=torch.optim.SGD(pipe.parameters(), 0.1))
        with torch.no_grad():
            loss = pipe.step(X, loss_fn=squares).loss
        torch.testing.assert_close(loss, squares(module(X), None).detach())
        pipe(X).sum().backward()
        assert module[0].weight.grad is not None
        module.requires_grad_(False)
        assert pipe.step(X, loss_fn=squares).loss == loss
        with pytest.raises(ScheduleError, match="forwards only"):
            pipe.step(X.clone().requires_grad_(), loss_fn=squares)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    module = model()
    with compiled(module) as pipe:
        optimizer = torch.optim.LBFGS(pipe.parameters(), lr=0.1)
        with pytest.raises(TypeError, match=r"LBFGS evaluates the model several times"):
            pipe.step(X, loss_fn=squares, optimizer=optimizer)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = pipe.step(X, loss_fn=squares).loss
            assert loss is not None
            return loss

        before = optimizer.step(closure)
        assert closure() < before
