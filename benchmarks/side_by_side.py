"""fxpipe, torchgpipe 0.0.7 and eager on the same models: 2 stages, every recompute mode."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

import fxpipe
from benchmarks.bound import simulated_bound
from benchmarks.contenders import (
    CORES,
    MODES,
    Recompute,
    Step,
    eager,
    fxpipe_step,
    pipeline,
    torchgpipe_step,
)
from benchmarks.harness import Report, Sample, arguments, interleave, ratio
from benchmarks.workloads import Workload, workloads
from examples.ceiling import two_thread_speed

COLUMNS = (
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
)


def main() -> None:
    parser = arguments("fxpipe beside torchgpipe and eager, two stages", rounds=9)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=None)
    parser.add_argument("--recompute", choices=MODES, nargs="+", default=None)
    parser.add_argument("--only", default="", help="part of a workload's name")
    options = parser.parse_args()
    counts = options.micro_batches or ([2] if options.quick else [4, 8, 16])
    rounds = 1 if options.quick else options.rounds
    modes = options.recompute or (MODES[:1] if options.quick else MODES)
    report = Report(
        "side_by_side",
        "One training step beside torchgpipe and eager, 2 stages",
        COLUMNS,
        remarks=[
            "Times of forward, loss and backward of one batch; × is the median over rounds of the "
            "ratio within a round (above 1: faster than eager). The bound is the simulator's, for "
            "the measured stage times and the speed of two independent threads on this machine."
        ],
    )
    for workload in workloads(options.quick):
        if options.only.lower() in workload.name.lower():
            for count in counts:
                _measure(report, workload, count, modes, rounds)
    report.write(options.out)


def _measure(
    report: Report, workload: Workload, count: int, modes: Sequence[Recompute], rounds: int
) -> None:
    """The rows of one model and number of micro-batches."""
    model = workload.make()
    x, target = workload.batch()
    rows = len(x) // count
    speed = two_thread_speed(model, x[:rows], repeats=rounds)
    report.remarks.append(
        f"{workload.name}, micro-batches of {rows}: two threads do {2 * speed:.2f} times the work "
        "of one."
    )
    with pipeline(model, x, count) as cut:
        for mode in modes:
            with (
                cut.replace(recompute=mode) as pipe,
                cut.replace(recompute=mode, backend="inline") as alone,
            ):
                timelines: list[fxpipe.Timeline] = []
                contenders = {
                    **_others(workload, model, x, target, count, mode),
                    "fxpipe": fxpipe_step(pipe, x, target),
                    "alone": fxpipe_step(alone, x, target, timelines),
                }
                times = interleave(contenders, rounds)
                bound = simulated_bound(pipe, timelines[1:], speed)
                report.add(workload.name, count, mode, *_row(times, bound))


def _others(
    workload: Workload, model: nn.Module, x: Tensor, target: Tensor, count: int, mode: Recompute
) -> dict[str, Step]:
    def torchgpipe(threads: int) -> Step:
        return torchgpipe_step(
            workload, model, x, target, chunks=count, recompute=mode, threads=threads
        )

    return {
        "one": eager(model, x, target, threads=1),
        "all": eager(model, x, target, threads=CORES),
        "torchgpipe": torchgpipe(1),
        "torchgpipe all": torchgpipe(CORES),
    }


def _row(times: dict[str, Sample], bound: float) -> list[object]:
    names = ("one", "all", "fxpipe", "torchgpipe", "torchgpipe all")
    return [
        *(times[name] for name in names),
        f"{ratio(times['one'], times['fxpipe']):.2f}",
        f"{ratio(times['all'], times['fxpipe']):.2f}",
        f"{ratio(times['one'], times['torchgpipe']):.2f}",
        f"{bound * 1e3:.1f} ms",
        f"{bound / times['fxpipe'].median:.2f}",
    ]


if __name__ == "__main__":
    main()
