"""Models too large for this machine, from the meta device to stage sources: seconds and memory."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.capture import STAGES, STEPS, Line, through
from benchmarks.harness import Report, Sample, arguments

CONFIGS: Final[Mapping[str, Mapping[str, int]]] = {
    "Llama 7B": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "Llama 70B": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,  # groups of queries share keys
    },
}
QUICK: Final = {**CONFIGS["Llama 7B"], "num_hidden_layers": 4}
LIMIT_SECONDS: Final = 20
LIMIT_BYTES: Final = 10**9


def on_meta(config: Mapping[str, int]) -> nn.Module:
    """A Llama without data."""
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(vocab_size=32000, use_cache=False, **config))


@dataclass(frozen=True)
class Run:
    """What became of a model.

    Attributes:
        line: its nodes, and the wall time of every step.
        parameters: how many numbers they hold.
        devices: where parameters and buffers were afterwards.
        grown: bytes by which the process at its peak exceeded what it held before the model was built.
    """

    line: Line
    parameters: int
    devices: frozenset[str]
    grown: int

    @property
    def seconds(self) -> float:
        return sum(self.line.seconds.values())


def run(config: Mapping[str, int], folder: str) -> Run:
    """Take a Llama on the meta device all the way and write the sources of its stages to `folder`."""
    before = _resident()
    model = on_meta(config)
    tokens = torch.zeros(2, 512, dtype=torch.long, device="meta")
    line = through(model, (tokens,), folder)
    held = [*model.parameters(), *model.buffers()]
    return Run(
        line,
        sum(parameter.numel() for parameter in model.parameters()),
        frozenset(tensor.device.type for tensor in held),
        _peak() - before,
    )


def in_fresh_process(config: Mapping[str, int], folder: str) -> Run:
    """`run` in a process that has done nothing else, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, config, folder).result()


def _peak() -> int:
    """Bytes held at most. `getrusage` counts the process that started this one, where that held more."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _resident() -> int:
    """Bytes held just now; the peak so far where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return _peak()
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    options = arguments("large models on the meta device", rounds=3).parse_args()
    configs = {"Llama 7B, 4 of its layers": QUICK} if options.quick else CONFIGS
    report = Report(
        "large_models",
        f"Models on the meta device: {STAGES} stages, written as source",
        ["model", "parameters", "nodes", *(f"{step}, s" for step in STEPS), "all, s", "memory, MB"],
        remarks=[
            "Wall time of each step, each model in fresh processes; memory: by how much the process at "
            "its peak exceeded what it held before the model was built. No parameter gets data. To be "
            f"below {LIMIT_SECONDS} s and {LIMIT_BYTES // 10**6} MB."
        ],
    )
    for name, config in configs.items():
        _measure(report, name, config, 1 if options.quick else options.rounds)
    report.write(options.out)


def _measure(report: Report, name: str, config: Mapping[str, int], rounds: int) -> None:
    runs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(in_fresh_process(config, folder))
    steps = [statistics.median(one.line.seconds[step] for one in runs) for step in STEPS]
    whole = Sample(tuple(one.seconds for one in runs))
    report.add(
        name,
        f"{runs[0].parameters / 1e9:.1f} billion",
        f"{runs[0].line.nodes:,}",
        *(f"{seconds:.2f}" for seconds in steps),
        f"{whole.median:.1f} ±{whole.spread:.0%}",
        f"{max(one.grown for one in runs) / 1e6:.0f}",
    )


if __name__ == "__main__":
    main()
