"""How far the simulator is right: measured over simulated step time of every schedule, two CPU workers.

The simulator is fed with what stages take one at a time, in one thread, and with the speed that two
threads have beside each other on this machine; both are measured again in every round, between the
schedules, so that what disturbs the machine for a while disturbs both sides of the ratio.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from benchmarks.bound import measured_costs
from benchmarks.contenders import fxpipe_step, intra_op_threads
from benchmarks.harness import Report, Sample, arguments, interleave
from examples.ceiling import two_thread_speed
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet

RANKS = 2
PER_RANK: Mapping[str, int] = {
    **dict.fromkeys(("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"), 1),
    **dict.fromkeys(("interleaved-1f1b", "looped-bfs", "interleaved-zb"), 2),
    **dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"), 2),
    **dict.fromkeys(("dualpipe", "chimera"), 1),
}
"""Schedule with backwards → stages per rank; the last ones have two replicas of every stage."""
WHOLE, SPLIT = "1f1b", "zb-h1"
"""What the stages' costs are measured with: backwards whole, and in halves."""


@dataclass(frozen=True)
class Case:
    """A model and its batch."""

    name: str
    model: nn.Module
    x: Tensor
    target: Tensor
    chunks: int


def cases(quick: bool) -> Iterator[Case]:
    torch.manual_seed(0)
    if quick:
        x = torch.randn(8, 8, 32)
        yield Case("Transformer", TransformerStack(4, 32, 2), x, x, 4)
        x = torch.randn(8, 3, 64, 64)
        yield Case("U-Net", UNet(1, 4), x, torch.randn(8, 1, 64, 64), 4)
        return
    x = torch.randn(32, 64, 256)
    yield Case(
        "Transformer, 8 blocks of 256, 32 sequences of 64", TransformerStack(8, 256, 4), x, x, 8
    )
    x = torch.randn(8, 3, 128, 128)
    yield Case("U-Net (2, 16), 8 images 128×128", UNet(2, 16), x, torch.randn(8, 1, 128, 128), 8)


@dataclass
class Run:
    """A schedule under trial.

    Attributes:
        name: the schedule's.
        pipe: runs it.
        stages: gives what its stages cost.
        measured: seconds of the step, per round.
        simulated: the same.
        busy: seconds that all ranks together compute, per round.
        simulated_busy: the same.
        idle: share of the simulated step that ranks wait.
    """

    name: str
    pipe: fxpipe.Pipeline
    stages: Stages
    measured: list[float] = field(default_factory=list)
    simulated: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    simulated_busy: list[float] = field(default_factory=list)
    idle: float = 0.0


@dataclass
class Stages:
    """A cut whose stages run alone, one action at a time: timelines of all rounds."""

    pipe: fxpipe.Pipeline
    timelines: list[fxpipe.Timeline] = field(default_factory=list)

    def costs(self, turn: int) -> list[fxpipe.StageCost]:
        """What the stages took in one round."""
        return measured_costs([self.timelines[turn]], self.pipe.plan.num_stages)


def main() -> None:
    parser = arguments("measured against simulated step time", rounds=5)
    parser.add_argument("--only", default="", help="part of a model's name")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    report = Report(
        "schedules",
        "Schedules on two CPU workers: measured over simulated step time",
        [
            "model",
            "schedule",
            "stages per rank",
            "simulated",
            "idle, simulated",
            "measured",
            "measured / simulated",
            "computing, measured / simulated",
        ],
        remarks=[
            "The simulator is given what each stage takes alone in one thread (forward, backward or "
            "its halves) and the speed of two threads beside each other, measured in every round "
            "between the schedules. Ratios are medians over rounds of the ratio within the round, ± "
            "half the distance between the quartiles. The last column is that of the seconds that both "
            "workers compute: what of the ratio before it is there as well, is because computations "
            "take longer (or less) beside each other than two threads do on the whole model; the rest "
            "is what the runtime adds and the simulator leaves out.",
            "Of the schedules with two copies of every stage, the simulated step has no idle time on "
            "two ranks, so nothing hides there: neither a computation that takes longer than its like, "
            "nor the copies' gradients, which are added up after the last backward and are not "
            "simulated.",
        ],
    )
    for case in cases(options.quick):
        if options.only.lower() in case.name.lower():
            _measure(report, case, rounds)
    report.write(options.out)


def _measure(report: Report, case: Case, rounds: int) -> None:
    speeds: list[float] = []
    with ExitStack() as stack, intra_op_threads(1):
        runs = runs_of(case, stack)
        cuts = list({id(run.stages): run.stages for run in runs}.values())
        contenders: dict[str, Callable[[], object]] = {
            run.name: partial(step, run, case) for run in runs
        }
        for number, cut in enumerate(cuts):
            contenders[f"alone {number}"] = fxpipe_step(
                cut.pipe, case.x, case.target, cut.timelines
            )
        rows = case.x[: len(case.x) // case.chunks]
        contenders["speed"] = lambda: speeds.append(two_thread_speed(case.model, rows, repeats=1))
        interleave(contenders, 0)  # the first step of each makes its threads
        turns = list(contenders.items())
        for turn in range(rounds):
            shift = turn % len(turns)
            interleave(dict(turns[shift:] + turns[:shift]), 1, warmup=0)
        speed = Sample(tuple(speeds[1:])).median
        for run in runs:
            for turn in range(rounds):
                simulate(run, turn - rounds, speed)
    report.remarks.append(
        f"{case.name}, {case.chunks} micro-batches: two threads do {2 * speed:.2f} times the work of "
        "one."
    )
    for run in runs:
        measured, simulated = Sample(tuple(run.measured[1:])), Sample(tuple(run.simulated))
        busy, simulated_busy = Sample(tuple(run.busy[1:])), Sample(tuple(run.simulated_busy))
        report.add(
            case.name,
            run.name,
            run.pipe.plan.num_stages // RANKS,
            f"{simulated.median * 1e3:.1f} ms",
            f"{run.idle:.0%}",
            measured,
            _ratio(measured, simulated),
            _ratio(busy, simulated_busy),
        )


def _ratio(over: Sample, under: Sample) -> str:
    each = Sample(tuple(a / b for a, b in zip(over.seconds, under.seconds, strict=True)))
    return f"{each.median:.2f} ±{each.spread * each.median:.2f}"


def runs_of(case: Case, stack: ExitStack) -> list[Run]:
    """A pipeline per schedule, all of one cut for each number of stages."""
    cuts: dict[tuple[int, bool], Stages] = {}
    bases: dict[int, fxpipe.Pipeline] = {}
    runs = []
    for name, per_rank in PER_RANK.items():
        if per_rank not in bases:
            bases[per_rank] = stack.enter_context(_pipeline(case, per_rank))
        base = bases[per_rank]
        try:
            pipe = stack.enter_context(base.replace(schedule=name))
            fxpipe_step(pipe, case.x, case.target)()
        except fxpipe.ScheduleError as error:
            print(f"{name}: {error}")
            continue
        split = any(kind in _kinds(pipe) for kind in _HALVES)
        if (per_rank, split) not in cuts:
            alone = base.replace(schedule=SPLIT if split else WHOLE, backend="inline")
            cuts[per_rank, split] = Stages(stack.enter_context(alone))
        runs.append(Run(name, pipe, cuts[per_rank, split]))
    return runs


_HALVES = (fxpipe.Kind.BACKWARD_INPUT, fxpipe.Kind.BACKWARD_WEIGHT)


def _kinds(pipe: fxpipe.Pipeline) -> set[fxpipe.Kind]:
    return {action.kind for row in pipe.schedule.computes for action in row}


def _pipeline(case: Case, per_rank: int) -> fxpipe.Pipeline:
    return fxpipe.compile(
        copy.deepcopy(case.model),
        devices=["cpu"] * RANKS,
        stages_per_rank=per_rank,
        chunks=case.chunks,
        example_args=(case.x,),
        threads_per_rank=1,
    )


def step(run: Run, case: Case) -> None:
    """A step, timed."""
    run.pipe.zero_grad()
    begun = time.perf_counter()
    result = run.pipe.step(case.x, target=case.target, loss_fn=F.mse_loss, keep_output=False)
    run.measured.append(time.perf_counter() - begun)
    run.busy.append(_busy(result.timeline))


def simulate(run: Run, turn: int, speed: float) -> None:
    """The step of a round, simulated with what the stages took in this round."""
    programs = fxpipe.lower(run.pipe.schedule, run.pipe.stage_graph)
    cluster = fxpipe.Cluster(ranks=RANKS, speeds=(1.0, speed))
    timeline = fxpipe.simulate(programs, run.stages.costs(turn), cluster, run.pipe.stage_graph)
    run.simulated.append(timeline.makespan)
    run.simulated_busy.append(_busy(timeline))
    run.idle = timeline.bubble


def _busy(timeline: fxpipe.Timeline) -> float:
    return sum(map(timeline.busy, range(timeline.num_ranks)))


if __name__ == "__main__":
    main()
