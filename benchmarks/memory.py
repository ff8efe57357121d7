"""Bytes each stage keeps for backward: GPipe and 1F1B, every recompute mode, two stages."""

from __future__ import annotations

from benchmarks.contenders import MODES, fxpipe_step, pipeline
from benchmarks.harness import Report, arguments
from benchmarks.saved_bytes import counted
from benchmarks.workloads import Workload, workloads


def main() -> None:
    options = arguments("bytes saved for backward", rounds=1).parse_args()
    chunks = 4 if options.quick else 8
    report = Report(
        "memory",
        f"Saved for backward, {chunks} micro-batches, 2 stages",
        [
            "model",
            "schedule",
            "recompute",
            "stage 0, MB",
            "stage 1, MB",
            "stage 0 / 1 / both, of GPipe never",
        ],
        remarks=[
            "Peak over a step of the unique storages that a stage keeps from forward to backward "
            "(boundary values kept for recomputation included, parameters and the batch left out). "
            "The last column is the share of what the same stages keep under GPipe without "
            "recomputation: each, and their sum."
        ],
    )
    for workload in workloads(options.quick):
        _measure(report, workload, chunks)
    report.write(options.out)


def _measure(report: Report, workload: Workload, chunks: int) -> None:
    model = workload.make()
    x, target = workload.batch()
    everything: list[int] | None = None
    with pipeline(model, x, chunks) as cut:
        for schedule in ("gpipe", "1f1b"):
            for mode in MODES:
                with cut.replace(schedule=schedule, recompute=mode, backend="inline") as pipe:
                    step = fxpipe_step(pipe, x, target)
                    step()
                    peaks = counted(pipe, step, ignore=(x, target, *pipe.parameters()))
                everything = everything or peaks
                pairs = [*zip(peaks, everything, strict=True), (sum(peaks), sum(everything))]
                shares = [f"{kept / whole:.0%}" for kept, whole in pairs]
                megabytes = [f"{peak / 1e6:.2f}" for peak in peaks]
                report.add(workload.name, schedule, mode, *megabytes, " / ".join(shares))


if __name__ == "__main__":
    main()
