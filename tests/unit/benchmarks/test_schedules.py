"""Measured against simulated schedules: what the simulator is given, and which schedules are tried."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import nn

import fxpipe
from benchmarks.bound import measured_costs
from benchmarks.contenders import fxpipe_step
from benchmarks.schedules import PER_RANK, Case, runs_of, simulate
from fxpipe.ir.timeline import Span
from fxpipe.schedules.registry import SCHEDULES


def timeline(text: str, seconds: list[float]) -> fxpipe.Timeline:
    """Actions of one rank, one after another."""
    schedule = fxpipe.Schedule.from_text(text)
    spans, now = [], 0.0
    for action, length in zip(schedule.computes[0], seconds, strict=True):
        spans.append(Span(0, action, now, now + length))
        now += length
    return fxpipe.Timeline(tuple(spans), "run", (0,))


def test_costs_are_medians_of_what_stages_took() -> None:
    whole = timeline("0F0 0B0 0F1 0B1 0F2 0B2", [1.0, 2.0, 1.0, 3.0, 5.0, 9.0])
    (cost,) = measured_costs([whole], 1)
    assert (cost.forward, cost.backward, cost.weight) == (1.0, 3.0, 0.0)
    split = timeline("0F0 0I0 0W0", [1.0, 2.0, 0.5])
    (cost,) = measured_costs([split], 1)
    assert (cost.forward, cost.input, cost.weight) == (1.0, 2.0, 0.5)


def test_every_schedule_with_backwards_is_tried() -> None:
    assert {*PER_RANK, "forward"} == set(SCHEDULES)


def test_stages_of_one_cut_are_timed_once() -> None:
    x = torch.randn(4, 3)
    case = Case("tiny", nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), x, x, 2)
    with ExitStack() as stack:
        runs = {run.name: run for run in runs_of(case, stack)}
        assert runs["gpipe"].stages is runs["1f1b"].stages
        assert runs["zb-h1"].stages is runs["zb-h2"].stages
        assert len({id(runs[n].stages) for n in ("1f1b", "zb-h1", "looped-bfs", "zb-v")}) == 4
        run = runs["zb-v"]
        fxpipe_step(run.stages.pipe, x, x, run.stages.timelines)()
        simulate(run, -1, speed=1.0)
        alone = sum(cost.forward + cost.backward for cost in run.stages.costs(-1))
        assert 2 * alone / 2 <= run.simulated[0] * (1 + 1e-9)
        assert run.simulated[0] <= 2 * alone * (1 + 1e-9)
