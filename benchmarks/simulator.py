"""How long schedules take to make, check, lower, simulate and score: 64 ranks, 512 micro-batches."""

from __future__ import annotations

from benchmarks.harness import Report, arguments, interleave
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.schedules.check import check
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.score import Scorer


def main() -> None:
    options = arguments("schedules and the simulator", rounds=5).parse_args()
    ranks, micro_batches = (4, 8) if options.quick else (64, 512)
    report = Report(
        "simulator",
        f"Schedules: {ranks} ranks, {micro_batches} micro-batches",
        ["schedule", "computations", "make", "check", "lower", "simulate", "score"],
        remarks=[
            "Links have latency and bandwidth; simulate makes a timeline, score only numbers."
        ],
    )
    for name, per_rank in (("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 2), ("zb-v", 2)):
        _measure(report, name, ranks, per_rank, micro_batches, 1 if options.quick else 5)
    report.write(options.out)


def _measure(
    report: Report, name: str, ranks: int, per_rank: int, micro_batches: int, rounds: int
) -> None:
    stages = ranks * per_rank
    graph, cluster = linear(stages, 100), Cluster(ranks, latency=0.1, bandwidth=1000.0)
    costs = [StageCost(1.0, 2.0, 1.0, saved_bytes=1)] * stages
    schedule = SCHEDULES[name](stages, ranks, micro_batches)
    programs = lower(schedule, graph)
    scorer = Scorer(graph, costs, schedule.placement, micro_batches, cluster)
    orders = scorer.orders(schedule)
    times = interleave(
        {
            "make": lambda: SCHEDULES[name](stages, ranks, micro_batches),
            "check": lambda: check(schedule, graph),
            "lower": lambda: lower(schedule, graph),
            "simulate": lambda: simulate(programs, costs, cluster, graph),
            "score": lambda: scorer.score(orders),
        },
        rounds,
    )
    report.add(name, sum(map(len, orders)), *times.values())


if __name__ == "__main__":
    main()
