"""How capture scales: time per node of every step from a module to stage sources, up to 20,000 nodes."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import fxpipe
from benchmarks.harness import Report, Sample, arguments
from fxpipe.codegen.files import write_stages

STAGES: Final = 8
STEPS: Final = ("trace", "estimate", "partition", "link", "generate", "write")


@dataclass(frozen=True)
class Line:
    """The number of nodes of a model's graph, and the seconds of every step to its stage sources."""

    nodes: int
    seconds: Mapping[str, float]


def through(
    model: nn.Module,
    args: Sequence[Any],
    folder: str,
    clock: Callable[[], float] = time.perf_counter,
) -> Line:
    """Write the stage sources of a model to a folder, step by step."""
    seconds: dict[str, float] = {}

    def timed(step: str, make: Callable[[], Any]) -> Any:
        begun = clock()
        made = make()
        seconds[step] = clock() - begun
        return made

    capture = timed("trace", lambda: fxpipe.trace(model, args))
    costs = timed("estimate", lambda: fxpipe.estimate(capture, model))
    plan = timed("partition", lambda: fxpipe.partition(capture, costs, STAGES))
    graph = timed("link", lambda: fxpipe.link(capture, plan))
    programs = timed("generate", lambda: fxpipe.generate(capture, plan, graph, model))
    timed("write", lambda: write_stages(programs, folder))
    return Line(len(capture.graph.nodes), seconds)


# -- models of any length --------------------------------------------------------------------------


class Ladder(nn.Module):
    """A U-Net of one resolution: what goes down is read again on the way up, the first value last."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(4, 4) for _ in range(levels))
        self.up = nn.ModuleList(nn.Linear(8, 4) for _ in range(levels))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
        for layer in self.up:
            x = torch.relu(layer(torch.cat([x, skips.pop()], -1)))
        return x


def llama(layers: int) -> nn.Module:
    """A Llama of many narrow layers: all of them read the same mask and rotations."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        vocab_size=32,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True)
class Family:
    """Models of one kind; `nodes`: about how many a block has."""

    name: str
    nodes: int
    build: Callable[[int], nn.Module]
    args: tuple[Any, ...]


FAMILIES: Final = (
    Family("Llama", 57, llama, (torch.zeros(2, 8, dtype=torch.long),)),
    Family("U-Net", 5, Ladder, (torch.ones(2, 4),)),
)


# -- measuring -------------------------------------------------------------------------------------


def main() -> None:
    options = arguments("time per node of capture and all that follows", rounds=5).parse_args()
    sizes = (120, 300) if options.quick else (300, 1_250, 5_000, 20_000)
    torch.set_num_threads(1)
    report = Report(
        "capture",
        "From a module to stage sources: time per node",
        ["model", "nodes", *(f"{step}, ms" for step in STEPS), "all, ms", "all, s"],
        remarks=[
            f"Milliseconds of processor time per node of the graph, {STAGES} stages; `trace` records at "
            "two batch sizes and verifies, forward and backward. *exponent*: the slope of the logarithm "
            "of the time over that of the number of nodes (1: linear), over all sizes and between the "
            "two largest; median over rounds ± half the distance between the quartiles. Fixed costs "
            "press it down where models are small. All skips of the U-Net are alive in its middle."
        ],
    )
    for family in FAMILIES:
        measured = _measure(family, sizes, 1 if options.quick else options.rounds)
        _add(report, family, measured)
    report.write(options.out)


@dataclass(frozen=True)
class Size:
    """Seconds of every step, and of all of them together, at one number of nodes."""

    nodes: int
    steps: Mapping[str, Sample]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Size:
        """From the rounds of one size."""
        steps = {step: Sample(tuple(line.seconds[step] for line in lines)) for step in STEPS}
        whole = Sample(tuple(sum(line.seconds.values()) for line in lines))
        return cls(lines[0].nodes, {**steps, "all": whole})


def _measure(family: Family, sizes: Sequence[int], rounds: int) -> list[Size]:
    """All sizes once a round, starting with another one each round."""
    blocks = [max(1, size // family.nodes) for size in sizes]
    found: dict[int, list[Line]] = {count: [] for count in blocks}
    _run(family, blocks[0])  # imports, caches
    for turn in range(rounds):
        shift = turn % len(blocks)
        for count in blocks[shift:] + blocks[:shift]:
            found[count].append(_run(family, count))
    return [Size.of(lines) for lines in found.values()]


def _run(family: Family, blocks: int) -> Line:
    torch.manual_seed(0)
    model = family.build(blocks)
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        return through(model, family.args, folder, time.process_time)


def exponents(sizes: Sequence[Size], step: str) -> Sample:
    """Round by round, the slope of log time over log nodes."""
    nodes = [math.log(size.nodes) for size in sizes]
    rounds = zip(*(size.steps[step].seconds for size in sizes), strict=True)
    logs = [[math.log(max(seconds, 1e-9)) for seconds in one] for one in rounds]
    return Sample(tuple(statistics.linear_regression(nodes, log).slope for log in logs))


def _add(report: Report, family: Family, sizes: Sequence[Size]) -> None:
    for size in sizes:
        cells = [f"{1e3 * size.steps[step].median / size.nodes:.3f}" for step in (*STEPS, "all")]
        report.add(family.name, f"{size.nodes:,}", *cells, f"{size.steps['all'].median:.2f}")
    for fitted in [sizes, sizes[-2:]] if len(sizes) > 2 else [sizes]:
        cells = [_exponent(exponents(fitted, step)) for step in (*STEPS, "all")]
        span = f"exponent, {fitted[0].nodes:,} to {fitted[-1].nodes:,}"
        report.add(family.name, span, *cells, "")


def _exponent(sample: Sample) -> str:
    return f"{sample.median:.2f} ±{sample.spread * abs(sample.median):.2f}"


if __name__ == "__main__":
    main()
