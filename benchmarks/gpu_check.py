"""What only a real accelerator can show, with all stages on ``cuda:0``; a few minutes, no network.

Exactness (within what eager differs from itself from run to run), streams that overlap, peak memory.
Prints a table; the exit status says whether every check passed.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from benchmarks.harness import Report, environment, interleave
from examples.models.amoebanet import AmoebaNetD
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet

DEVICE = "cuda:0"
CHUNKS = 8


@dataclass(frozen=True)
class Case:
    """A model and its batch on the device."""

    name: str
    model: nn.Module
    x: Tensor
    target: Tensor


def cases() -> Iterator[Case]:
    """Small models of three kinds: skips, matrix products, batch norm."""
    torch.manual_seed(0)
    yield Case("U-Net (2, 32)", *_on_device(UNet(2, 32), (32, 3, 128, 128), (32, 1, 128, 128)))
    stack = TransformerStack(8, 512, 8)
    yield Case("Transformer, 8 blocks of 512", *_on_device(stack, (32, 128, 512), (32, 128, 512)))
    amoeba = AmoebaNetD(6, 96, classes=100)
    yield Case("AmoebaNet-D (6, 96)", *_on_device(amoeba, (32, 3, 128, 128), (32, 100)))


def _on_device(
    model: nn.Module, x: tuple[int, ...], target: tuple[int, ...]
) -> tuple[nn.Module, Tensor, Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0  # keyed numbers are not those of the default generator
    return model.to(DEVICE), torch.randn(x, device=DEVICE), torch.randn(target, device=DEVICE)


def eager_step(case: Case, model: nn.Module) -> Tensor:
    """The micro-batches one after another, as `Pipeline.step` defines its result."""
    total = torch.zeros((), device=DEVICE)
    rows = zip(case.x.tensor_split(CHUNKS), case.target.tensor_split(CHUNKS), strict=True)
    for x, target in rows:
        loss = F.mse_loss(model(x), target) * (len(x) / len(case.x))
        loss.backward()
        total = total + loss.detach()
    return total


def gradients(model: nn.Module) -> list[Tensor]:
    """Copies of all gradients."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """Largest difference of two lists of gradients, relative to the largest value."""
    scale = max(float(t.abs().max()) for t in a)
    return max(float((s - t).abs().max()) for s, t in zip(a, b, strict=True)) / scale


def pipeline(case: Case, model: nn.Module, stages: int, **options: str) -> fxpipe.Pipeline:
    """All stages on one device, each rank with streams of its own."""
    return fxpipe.compile(
        model,
        devices=[DEVICE] * stages,
        chunks=CHUNKS,
        example_args=(case.x,),
        batch_norm="per_micro_batch",
        **options,
    )


def step_of(case: Case, pipe: fxpipe.Pipeline) -> Callable[[], None]:
    """A step that ends when the device has finished."""

    def step() -> None:
        pipe.zero_grad()
        pipe.step(case.x, target=case.target, loss_fn=F.mse_loss, keep_output=False)
        torch.cuda.synchronize()

    return step


def check_exact(report: Report, case: Case) -> bool:
    """Gradients against eager, allowing what eager differs from itself."""
    runs = []
    for _ in range(3):
        plain = copy.deepcopy(case.model)
        eager_step(case, plain)
        runs.append(gradients(plain))
    own = max(distance(runs[0], other) for other in runs[1:])
    passed = True
    for stages in (2, 3):
        for schedule in ("gpipe", "1f1b"):
            for recompute in ("never", "always"):
                model = copy.deepcopy(case.model)
                options = {"schedule": schedule, "recompute": recompute}
                with pipeline(case, model, stages, **options) as pipe:
                    step_of(case, pipe)()
                    apart = distance(runs[0], gradients(model))
                right = apart <= max(2 * own, 1e-7)
                passed &= right
                what = f"{stages} stages, {schedule}, recompute {recompute}"
                _row(report, case, "exact", what, f"{apart:.1e} (eager {own:.1e})", right)
    return passed


def check_repeatable(report: Report, case: Case) -> bool:
    """Many steps in a row give the gradients of the first: a missing wait between streams shows."""
    model = copy.deepcopy(case.model).eval()
    with pipeline(case, model, 3) as pipe:
        step = step_of(case, pipe)
        step()
        first = gradients(model)
        apart = 0.0
        for _ in range(20):
            step()
            apart = max(apart, distance(first, gradients(model)))
    right = apart <= 1e-4
    _row(report, case, "streams", "20 steps against the first", f"{apart:.1e}", right)
    return right


def check_speed(report: Report, case: Case) -> None:
    """Step time beside eager on whole batch and on micro-batches (no pass or fail)."""
    plain = copy.deepcopy(case.model)

    def whole() -> None:
        plain.zero_grad()
        F.mse_loss(plain(case.x), case.target).backward()
        torch.cuda.synchronize()

    def parts() -> None:
        plain.zero_grad()
        eager_step(case, plain)
        torch.cuda.synchronize()

    with pipeline(case, copy.deepcopy(case.model), 2) as pipe:
        times = interleave(
            {"whole": whole, "parts": parts, "pipe": step_of(case, pipe)}, rounds=9, warmup=3
        )
    _row(report, case, "speed", "eager, whole batch", times["whole"], None)
    _row(report, case, "speed", "eager, micro-batches", times["parts"], None)
    _row(report, case, "speed", "2 stages on one device", times["pipe"], None)


def check_overlap(report: Report, case: Case) -> bool:
    """Kernels of two ranks run on different streams, and some at the same time."""
    with pipeline(case, copy.deepcopy(case.model), 2) as pipe:
        step = step_of(case, pipe)
        step()
        activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profiled:
            step()
    kernels = [
        (event.time_range.start, event.time_range.end, event.device_resource_id)
        for event in profiled.events()
        if event.device_type == torch.profiler.DeviceType.CUDA
    ]
    busy = sum(end - start for start, end, _ in kernels)
    covered = _covered([(start, end) for start, end, _ in kernels])
    streams = len({stream for _, _, stream in kernels})
    right = streams >= 2
    what = (
        f"{streams} streams; kernels overlap {1 - covered / busy if busy else 0:.0%} of their time"
    )
    _row(report, case, "overlap", "2 stages on one device", what, right)
    return right


def _covered(ranges: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(ranges):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def check_memory(report: Report, case: Case) -> bool:
    """1F1B and recomputation keep less than GPipe."""
    peaks = {}
    for schedule, recompute in (("gpipe", "never"), ("1f1b", "never"), ("gpipe", "always")):
        options = {"schedule": schedule, "recompute": recompute}
        with pipeline(case, copy.deepcopy(case.model), 2, **options) as pipe:
            step = step_of(case, pipe)
            step()
            base = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            peaks[schedule, recompute] = torch.cuda.max_memory_allocated() - base
    most = peaks["gpipe", "never"]
    passed = True
    for (schedule, recompute), peak in peaks.items():
        right = peak <= most
        passed &= right
        what = f"{schedule}, recompute {recompute}"
        _row(report, case, "memory", what, f"{peak / 2**20:.0f} MiB", right)
    return passed


def _row(
    report: Report, case: Case, check: str, what: str, value: object, passed: bool | None
) -> None:
    report.add(case.name, check, what, value, {True: "ok", False: "FAILED", None: ""}[passed])


def main() -> int:
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA device here, nothing to check")
        return 0
    begun = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    report = Report(
        "gpu_check",
        f"All stages on one GPU: {torch.cuda.get_device_name()}",
        ["model", "check", "what", "value", "passed"],
        remarks=[", ".join(environment().values())],
    )
    passed = True
    for case in cases():
        passed &= check_exact(report, case)
        passed &= check_repeatable(report, case)
        passed &= check_overlap(report, case)
        passed &= check_memory(report, case)
        check_speed(report, case)
    report.write()
    print(f"{'passed' if passed else 'FAILED'} in {time.perf_counter() - begun:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
