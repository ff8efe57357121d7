"""What the runtime itself costs: stages too small to matter, microseconds per stage × micro-batch."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

import fxpipe
from benchmarks.contenders import Recompute, Step, fxpipe_step, intra_op_threads
from benchmarks.harness import Report, Sample, arguments, interleave

WIDTH = 4


def main() -> None:
    options = arguments("overhead per stage and micro-batch", rounds=31).parse_args()
    rounds = 3 if options.quick else options.rounds
    micro_batches = 4 if options.quick else 32
    report = Report(
        "overhead",
        f"Overhead: {micro_batches} micro-batches through trivially small stages",
        [
            "stages",
            "recompute",
            "plain loop, µs",
            "fxpipe, µs",
            "fxpipe inline, µs",
            "torchgpipe, µs",
            "fxpipe / torchgpipe",
        ],
        remarks=[
            f"Each stage is one Linear({WIDTH}, {WIDTH}) on one row. Microseconds per stage and "
            "micro-batch of a whole step (forward and backward). The plain loop is the unsplit model "
            "on the same micro-batches one after another."
        ],
    )
    for stages in (2, 4, 8):
        for mode in ("never", "always"):
            _measure(report, stages, micro_batches, mode, rounds)
    report.write(options.out)


def _measure(report: Report, stages: int, micro_batches: int, mode: Recompute, rounds: int) -> None:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(stages)))
    x = torch.randn(micro_batches, WIDTH)
    target = torch.randn(micro_batches, WIDTH)
    pipe = fxpipe.compile(
        copy.deepcopy(model),
        devices=["cpu"] * stages,
        chunks=micro_batches,
        example_args=(x,),
        cuts=[str(stage) for stage in range(1, stages)],
        recompute=mode,
        threads_per_rank=1,
    )
    inline = pipe.replace(backend="inline")
    times = interleave(
        {
            "loop": _loop(copy.deepcopy(model), x, target),
            "fxpipe": fxpipe_step(pipe, x, target),
            "inline": fxpipe_step(inline, x, target),
            "torchgpipe": _torchgpipe(copy.deepcopy(model), x, target, mode),
        },
        rounds,
        warmup=3,
    )
    pipe.close()
    inline.close()

    def each(sample: Sample) -> str:
        return f"{sample.median / stages / micro_batches * 1e6:.0f} ±{sample.spread:.0%}"

    report.add(
        stages,
        mode,
        *(each(times[name]) for name in ("loop", "fxpipe", "inline", "torchgpipe")),
        f"{times['fxpipe'].median / times['torchgpipe'].median:.2f}",
    )


def _loop(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> Step:
    def step() -> None:
        with intra_op_threads(1):
            model.zero_grad()
            for rows, wanted in zip(x.split(1), target.split(1), strict=True):
                (F.mse_loss(model(rows), wanted) / len(x)).backward()

    return step


def _torchgpipe(
    model: nn.Sequential, x: torch.Tensor, target: torch.Tensor, mode: Recompute
) -> Step:
    from torchgpipe import GPipe

    pipe = GPipe(
        model, [1] * len(model), devices=["cpu"] * len(model), chunks=len(x), checkpoint=mode
    )

    def step() -> None:
        with intra_op_threads(1):
            pipe.zero_grad()
            F.mse_loss(pipe(x), target).backward()

    return step


if __name__ == "__main__":
    main()
