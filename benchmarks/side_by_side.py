"""fxpipe, torchgpipe 0.0.7 and eager on the same models: 2 stages, every recompute mode."""

from __future__ import annotations

from torch import Tensor, nn

import fxpipe
from benchmarks.bound import simulated_bound
from benchmarks.contenders import (
    CORES,
    Recompute,
    Step,
    eager,
    fxpipe_step,
    pipeline,
    torchgpipe_step,
)
from benchmarks.harness import Report, arguments, interleave, ratio
from benchmarks.workloads import Workload, workloads
from examples.ceiling import two_thread_speed

MODES: tuple[Recompute, ...] = ("never", "except_last", "always")


def main() -> None:
    parser = arguments("fxpipe beside torchgpipe and eager, two stages", rounds=9)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=None)
    parser.add_argument("--only", default="", help="part of a workload's name")
    options = parser.parse_args()
    counts = options.micro_batches or ([2] if options.quick else [4, 8, 16])
    rounds = 1 if options.quick else options.rounds
    modes = MODES[:1] if options.quick else MODES
    report = Report(
        "side_by_side",
        "One training step beside torchgpipe and eager, 2 stages",
        [
            "model",
            "m",
            "recompute",
            "eager, 1 core",
            f"eager, {CORES} cores",
            "fxpipe",
            "torchgpipe",
            f"torchgpipe, {CORES} intra-op threads",
            "fxpipe × eager 1 core",
            f"fxpipe × eager {CORES} cores",
            "torchgpipe × eager 1 core",
            "bound",
            "share of bound",
        ],
        remarks=[
            "Times of forward, loss and backward of one batch; × is the median over rounds of the "
            "ratio within a round (above 1: faster than eager). The bound is the simulator's, for "
            "the measured stage times and the speed of two independent threads on this machine."
        ],
    )
    for workload in workloads(options.quick):
        if options.only.lower() in workload.name.lower():
            _measure(report, workload, counts, modes, rounds)
    report.write(options.out)


def _measure(
    report: Report,
    workload: Workload,
    counts: list[int],
    modes: tuple[Recompute, ...],
    rounds: int,
) -> None:
    model = workload.make()
    x, target = workload.batch()
    for count in counts:
        speed = two_thread_speed(model, x[: len(x) // count], repeats=rounds)
        report.remarks.append(
            f"{workload.name}, micro-batches of {len(x) // count}: two threads do "
            f"{2 * speed:.2f} times the work of one."
        )
        plan = None
        for mode in modes:
            pipe = pipeline(model, x, chunks=count, recompute=mode, plan=plan)
            plan = pipe.plan
            with pipe:
                _compare(report, workload, model, x, target, pipe, count, mode, speed, rounds)


def _compare(
    report: Report,
    workload: Workload,
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    pipe: fxpipe.Pipeline,
    count: int,
    mode: Recompute,
    speed: float,
    rounds: int,
) -> None:
    def peer(threads: int):
        return torchgpipe_step(
            workload, model, x, target, chunks=count, recompute=mode, threads=threads
        )

    times = interleave(
        {
            "one": eager(model, x, target, threads=1),
            "all": eager(model, x, target, threads=CORES),
            "fxpipe": fxpipe_step(pipe, x, target),
            "torchgpipe": peer(1),
            "torchgpipe all": peer(CORES),
        },
        rounds,
    )
    bound = simulated_bound(
        pipe, model, x, target, chunks=count, recompute=mode, speed=speed, rounds=rounds
    )
    report.add(
        workload.name,
        count,
        mode,
        times["one"],
        times["all"],
        times["fxpipe"],
        times["torchgpipe"],
        times["torchgpipe all"],
        f"{ratio(times['one'], times['fxpipe']):.2f}",
        f"{ratio(times['all'], times['fxpipe']):.2f}",
        f"{ratio(times['one'], times['torchgpipe']):.2f}",
        f"{bound * 1e3:.1f} ms",
        f"{bound / times['fxpipe'].median:.2f}",
    )


if __name__ == "__main__":
    main()
