"""MONAI's U-Net, unmodified, learns to remove noise: a pipeline over two CPU workers.

Run ``make demo``, or ``python -m examples.train_unet --seconds 60``.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from monai.networks.nets import BasicUNet
from torch import Tensor, nn

import fxpipe
from examples.ceiling import two_thread_speed
from examples.noisy_crops import SIGMA, NoisyCrops, held_out, psnr
from examples.timeline_picture import draw

BATCH = 32
MICRO_BATCHES = 8
CORES = os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train")
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    data = NoisyCrops()
    images, noise = data.batch(BATCH)
    model = BasicUNet(
        spatial_dims=2, in_channels=1, out_channels=1, features=(16, 16, 32, 64, 128, 16)
    )
    with fxpipe.compile(
        model, devices=["cpu", "cpu"], chunks=MICRO_BATCHES, example_args=(images,), seed=0
    ) as pipe:
        print(pipe.report())
        train(pipe, data, options.seconds)
        predicted = predict(pipe, model, images)
        rounds = 3 if options.seconds < 30 else 9
        measured = compare(pipe, model, images, noise, predicted, rounds)
        write(pipe, predicted, measured, options.out)


def train(pipe: fxpipe.Pipeline, data: NoisyCrops, seconds: float) -> None:
    """Train for a while; print the loss and how clean a held-out photograph comes out."""
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=2e-3)
    print(f"training for {seconds:.0f} s: {psnr(*held_out()):.1f} dB is the noisy photograph")
    begun = shown = time.perf_counter()
    losses: list[float] = []
    while (now := time.perf_counter()) - begun < seconds:
        images, noise = data.batch(BATCH)
        result = pipe.step(images, target=noise, loss_fn=F.mse_loss, keep_output=False)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(result.loss))
        if now - shown > seconds / 8:
            shown = now
            recent = statistics.mean(losses[-10:])
            print(f"  {now - begun:5.1f} s  step {len(losses):4d}  loss {recent:.4f}")
    print(f"  {len(losses)} steps; the held-out photograph: {denoised_psnr(pipe):.1f} dB")


@torch.no_grad()
def denoised_psnr(pipe: fxpipe.Pipeline) -> float:
    """How clean the held-out photograph comes out, in dB."""
    noisy, clean = held_out()
    pipe.eval()
    restored = noisy - SIGMA * pipe(noisy)
    pipe.train()
    return psnr(restored, clean)


def predict(pipe: fxpipe.Pipeline, model: nn.Module, images: Tensor) -> fxpipe.Timeline:
    """The simulator's timeline for the profiled costs and this machine's two-thread speed."""
    assert pipe.costs is not None
    plan = pipe.plan
    costs = [pipe.costs.over(plan.nodes_of(stage)) for stage in range(plan.num_stages)]
    speed = two_thread_speed(model, images[: BATCH // MICRO_BATCHES])
    print(f"two independent threads do {2 * speed:.2f} times the work of one here")
    programs = fxpipe.lower(pipe.schedule, pipe.stage_graph)
    return fxpipe.simulate(programs, costs, fxpipe.Cluster(2, speeds=(1.0, speed)))


def compare(
    pipe: fxpipe.Pipeline,
    model: nn.Module,
    images: Tensor,
    noise: Tensor,
    predicted: fxpipe.Timeline,
    rounds: int,
) -> fxpipe.Timeline:
    """Time the pipeline beside eager, taking turns; print the medians, return the last timeline."""
    plain = copy.deepcopy(model)
    timelines: list[fxpipe.Timeline] = []

    def pipelined() -> None:
        result = pipe.step(images, target=noise, loss_fn=F.mse_loss, keep_output=False)
        timelines.append(result.timeline)

    def eager() -> None:
        F.mse_loss(plain(images), noise).backward()

    times: dict[str, list[float]] = {"pipeline": [], "one core": [], "all cores": []}
    for turn in range(rounds + 1):
        once = {
            "pipeline": timed(pipelined, threads=1),
            "one core": timed(eager, threads=1),
            "all cores": timed(eager, threads=CORES),
        }
        if turn > 0:
            for name, seconds in once.items():
                times[name].append(seconds)
    step = statistics.median(times["pipeline"])
    print(f"step time: predicted {predicted.makespan * 1e3:.0f} ms, measured {step * 1e3:.0f} ms")
    for name, cores in (("one core", 1), ("all cores", CORES)):
        ratio = statistics.median(
            a / b for a, b in zip(times[name], times["pipeline"], strict=True)
        )
        seconds = statistics.median(times[name])
        print(f"eager on {name} ({cores}): {seconds * 1e3:.0f} ms, speed-up {ratio:.2f}")
    return timelines[-1]


def timed(call: Callable[[], None], threads: int) -> float:
    """Seconds of a call with so many intra-op threads in the calling thread."""
    torch.set_num_threads(threads)
    begun = time.perf_counter()
    call()
    seconds = time.perf_counter() - begun
    torch.set_num_threads(1)
    return seconds


def write(
    pipe: fxpipe.Pipeline, predicted: fxpipe.Timeline, measured: fxpipe.Timeline, folder: Path
) -> None:
    """Write what can be looked at: the graph, the sources of the stages, the timelines."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in pipe.stages:
        (folder / f"stage_{program.stage}.py").write_text(program.source, encoding="utf-8")
    (folder / "graph.svg").write_text(fxpipe.render(pipe.stage_graph, "svg"), encoding="utf-8")
    (folder / "timeline.svg").write_text(fxpipe.render(measured, "svg"), encoding="utf-8")
    try:
        draw({"predicted": predicted, "measured": measured}, folder / "timeline.png")
    except ImportError:
        print("no timeline.png: matplotlib is not installed (pip install 'fxpipe[viz]')")
    print(f"wrote {', '.join(sorted(path.name for path in folder.iterdir()))} to {folder}/")


if __name__ == "__main__":
    main()
