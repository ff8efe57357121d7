"""What a pipeline makes of its schedule: predictions, recomputations, forwards alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import (
    DeadlockError,
    InfeasiblePlanError,
    ScheduleError,
    UnsupportedCountsError,
)
from fxpipe.schedules.insert import with_recomputes
from fxpipe.schedules.registry import SCHEDULES
from tests.losses import mean_square

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Counted(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return super().forward(x).tanh()


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Counted(16, 16) for _ in range(4)))


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
            pipe.step(X, loss_fn=mean_square)
        counts.append(Counted.calls)
        found.append([parameter.grad for parameter in module.parameters()])
    assert counts == [4 * 4, 4 * 4 + 4 * 2]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_step_of_forwards_alone_is_no_training() -> None:
    module = model()
    with compiled(module, schedule="forward") as pipe:
        with pytest.raises(ScheduleError, match=r"forwards only.*Use pipe\(x\)"):
            pipe.step(X, loss_fn=mean_square)
        with pytest.raises(ScheduleError, match="forwards only"):
            pipe.step(X, loss_fn=mean_square, optimizer=torch.optim.SGD(pipe.parameters(), 0.1))
        with torch.no_grad():
            loss = pipe.step(X, loss_fn=mean_square).loss
        torch.testing.assert_close(loss, mean_square(module(X), None).detach())
        pipe(X).sum().backward()
        assert module[0].weight.grad is not None
        module.requires_grad_(False)
        assert pipe.step(X, loss_fn=mean_square).loss == loss
        with pytest.raises(ScheduleError, match="forwards only"):
            pipe.step(X.clone().requires_grad_(), loss_fn=mean_square)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    module = model()
    with compiled(module) as pipe:
        optimizer = torch.optim.LBFGS(pipe.parameters(), lr=0.1)
        with pytest.raises(TypeError, match=r"LBFGS evaluates the model several times"):
            pipe.step(X, loss_fn=mean_square, optimizer=optimizer)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = pipe.step(X, loss_fn=mean_square).loss
            assert loss is not None
            return loss

        before = optimizer.step(closure)
        assert closure() < before


def test_a_schedule_gets_the_stages_it_is_made_for() -> None:
    with compiled(model(), schedule="zb-v") as pipe:
        assert pipe.plan.num_stages == 4
        assert pipe.schedule.placement.ranks == (0, 1, 1, 0)
    with compiled(model(), schedule="zb-v", stages_per_rank=1) as pipe:
        assert pipe.plan.num_stages == 2
    with compiled(model(), schedule="zb-v", cuts=["1"]) as pipe:
        assert pipe.plan.num_stages == 2
    with compiled(model(), cuts=["1", "2", "3"]) as pipe:
        assert pipe.plan.num_stages == 4


def test_a_model_that_cannot_be_cut_so_often_gets_one_stage_per_rank() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    with pytest.warns(UserWarning, match=r"made for 4 stages on 2 ranks.*at most 2 are possible"):
        pipe = compiled(module, schedule="zb-v")
    with pipe:
        assert pipe.plan.num_stages == 2
        pipe.step(X, loss_fn=mean_square)
    with pytest.raises(InfeasiblePlanError):
        compiled(module, schedule="zb-v", stages_per_rank=2)
    with pytest.raises(InfeasiblePlanError):
        fxpipe.compile(nn.Linear(16, 16), ["cpu"] * 2, 2, schedule="zb-v", example_args=(X,))


def test_a_fixed_schedule_brings_its_counts() -> None:
    own = fxpipe.Schedule.from_text("0F0 2F0 0F1 2F1 2B0 0B0 2B1 0B1\n1F0 1F1 1B0 1B1")
    with fxpipe.compile(model(), ["cpu"] * 2, schedule=own, costs="estimate") as pipe:
        assert pipe.step(X, loss_fn=mean_square).loss is not None
        assert pipe.plan.num_stages == 3
        assert pipe.schedule.num_micro_batches == 2


DEAD = fxpipe.Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"schedule": "typo"}, ScheduleError, "there is no schedule 'typo'"),
        ({"schedule": DEAD, "chunks": 2}, DeadlockError, "rank"),
        ({"schedule": DEAD, "chunks": 3}, ScheduleError, "2 micro-batches instead of 3"),
        ({"schedule": DEAD, "devices": ["cpu"] * 3}, ScheduleError, "2 ranks instead of 3"),
        ({"schedule": "dualpipe", "devices": ["cpu"] * 3}, UnsupportedCountsError, "even number"),
        ({"schedule": fxpipe.Schedule(((), ())), "chunks": 2}, ScheduleError, "empty"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said_before_anything_runs(
    options: dict[str, object], error: type[Exception], says: str
) -> None:
    chosen = {"devices": ["cpu", "cpu"], **options}
    with pytest.raises(error, match=says):
        fxpipe.compile(Unused(), **chosen)
    if "devices" not in options:
        with fxpipe.compile(Unused(), ["cpu", "cpu"], options.get("chunks", 8)) as pipe:
            with pytest.raises(error, match=says):
                pipe.replace(schedule=options["schedule"])


class Unused(nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the model was run")


def test_a_functions_schedule_is_checked_on_the_models_own_stages() -> None:
    with pytest.raises(DeadlockError):
        compiled(model(), schedule=lambda stages, ranks, micro_batches: DEAD, chunks=2)


def test_another_order_of_micro_batches_agrees_up_to_rounding() -> None:
    rows = ["0F0 0F1 0F2 0F3 0B3 0B2 0B1 0B0", "1F0 1F1 1F2 1F3 1B3 1B2 1B1 1B0"]
    found = []
    for schedule in ("gpipe", fxpipe.Schedule.from_text("\n".join(rows))):
        module = model()
        with compiled(module, schedule=schedule) as pipe:
            pipe.step(X, loss_fn=mean_square)
            assert ("up to rounding, not bit for bit" in pipe.report()) == (schedule != "gpipe")
        found.append([parameter.grad for parameter in module.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
