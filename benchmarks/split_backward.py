"""What it costs to split a backward: (input pass + weight pass) / full backward, beside torch's own way.

A stage in the middle of a pipeline, one micro-batch, one thread. Torch's way is that of
``torch.distributed.pipelining``: two partial runs of one autograd graph.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.flop_counter import FlopCounterMode

import fxpipe
from benchmarks.contenders import intra_op_threads
from benchmarks.harness import Report, Sample, arguments, interleave
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet
from fxpipe.runtime.weight_queue import WeightQueue

WHOLE = fxpipe.Schedule.from_text("0F0 0B0", "whole")
SPLIT = fxpipe.Schedule.from_text("0F0 0I0 0W0", "split")


@dataclass(frozen=True)
class Case:
    """A model and the input of a micro-batch."""

    name: str
    model: nn.Module
    x: Tensor


@dataclass
class Passes:
    """Seconds that the passes of one contender took, one per run."""

    forward: list[float] = field(default_factory=list)
    inputs: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def note(self, forward: float, inputs: float, weights: float = 0.0) -> None:
        self.forward.append(forward)
        self.inputs.append(inputs)
        self.weights.append(weights)

    def backward(self, rounds: int) -> Sample:
        """Both passes together, of the last rounds."""
        both = (i + w for i, w in zip(self.inputs, self.weights, strict=True))
        return Sample(tuple(both)[-rounds:])

    def step(self, rounds: int) -> Sample:
        """Forward and backward, of the last rounds."""
        passes = zip(self.forward, self.inputs, self.weights, strict=True)
        return Sample(tuple(map(sum, passes))[-rounds:])


def cases(quick: bool) -> Iterator[Case]:
    """Matrix products, convolutions, and layers too small for anything but overhead to count."""
    torch.manual_seed(0)
    if quick:
        yield Case("Transformer", TransformerStack(2, 32, 2), torch.randn(2, 8, 32))
        yield Case("U-Net", UNet(1, 4), torch.randn(2, 3, 64, 64))
        return
    yield Case(
        "Transformer, 4 blocks of 512, 4 sequences of 128",
        TransformerStack(4, 512, 8),
        torch.randn(4, 128, 512),
    )
    yield Case("U-Net (2, 32), 4 images 128×128", UNet(2, 32), torch.randn(4, 3, 128, 128))
    layers = [nn.Linear(32, 32) for _ in range(16)]
    yield Case("16 linear layers of 32, 8 rows", nn.Sequential(*layers), torch.randn(8, 32))


def main() -> None:
    options = arguments("split against full backward", rounds=15).parse_args()
    rounds = 2 if options.quick else options.rounds
    report = Report(
        "split_backward",
        "Split backward: (input pass + weight pass) / full backward",
        [
            "model",
            "full backward",
            "input pass",
            "weight pass",
            "(input + weight) / full",
            "step, split / not",
            "weight FLOPs in the weight pass",
            "torch: (input + weight) / full",
            "torch: weight FLOPs in the weight pass",
        ],
        remarks=[
            "A stage whose input requires grad, one micro-batch, one thread. Ratios are medians over "
            "rounds of the ratio within a round. The step is forward and backward. Weight FLOPs are "
            "those of a full backward less those of one with frozen weights. Torch's way is "
            "`stage_backward_input` and `stage_backward_weight` of `torch.distributed.pipelining`, "
            "over its full backward."
        ],
    )
    with intra_op_threads(1):
        for case in cases(options.quick):
            _measure(report, case, rounds)
    report.write(options.out)


def _measure(report: Report, case: Case, rounds: int) -> None:
    with pipeline(case, WHOLE) as whole, pipeline(case, SPLIT) as split:
        found = {name: Passes() for name in ("whole", "split", "eager", "torch")}
        contenders: Mapping[str, Callable[[], object]] = {
            "whole": lambda: _step(whole, case, found["whole"]),
            "split": lambda: _step(split, case, found["split"]),
            "eager": lambda: _eager(case, found["eager"]),
            "torch": lambda: _torch(case, found["torch"]),
        }
        interleave(contenders, rounds, warmup=2)
        shares = flops_in_weight_pass(case, split)
    times = {name: passes.backward(rounds) for name, passes in found.items()}
    steps = {name: passes.step(rounds) for name, passes in found.items()}
    report.add(
        case.name,
        times["whole"],
        Sample(tuple(found["split"].inputs[-rounds:])),
        Sample(tuple(found["split"].weights[-rounds:])),
        ratio_with_spread(times["split"], times["whole"]),
        ratio_with_spread(steps["split"], steps["whole"]),
        f"{shares[0]:.1%}",
        ratio_with_spread(times["torch"], times["eager"]),
        f"{shares[1]:.1%}",
    )


def ratio_with_spread(over: Sample, under: Sample) -> str:
    """Median and half the distance between the quartiles of the ratio within a round."""
    each = Sample(tuple(a / b for a, b in zip(over.seconds, under.seconds, strict=True)))
    return f"{each.median:.3f} ±{each.spread * each.median:.3f}"


# -- fxpipe ------------------------------------------------------------------------------------------


def pipeline(case: Case, schedule: fxpipe.Schedule) -> fxpipe.Pipeline:
    return fxpipe.compile(
        copy.deepcopy(case.model),
        devices=["cpu"],
        chunks=1,
        example_args=(case.x,),
        schedule=schedule,
        backend="inline",
        threads_per_rank=1,
        costs="estimate",
    )


def _step(pipe: fxpipe.Pipeline, case: Case, passes: Passes | None = None) -> None:
    pipe.zero_grad()
    x = case.x.clone().requires_grad_()
    result = pipe.step(x, loss_fn=_loss, keep_output=False)
    if passes is not None:
        passes.note(*(span.duration for span in result.timeline.compute_spans(0)))


def _loss(output: Tensor, target: object = None) -> Tensor:
    return output.square().mean()


# -- torch -------------------------------------------------------------------------------------------


def _eager(case: Case, passes: Passes) -> None:
    case.model.zero_grad()
    begun = time.perf_counter()
    loss = _loss(case.model(case.x.clone().requires_grad_()))
    middle = time.perf_counter()
    loss.backward()
    passes.note(middle - begun, time.perf_counter() - middle)


def _torch(case: Case, passes: Passes | None = None) -> int:
    """FLOPs of the weight pass, where no times are taken."""
    case.model.zero_grad()
    begun = time.perf_counter()
    x = case.x.clone().requires_grad_()
    loss = _loss(case.model(x))
    middle = time.perf_counter()
    _, groups = stage_backward_input([loss], None, [x], case.model.parameters())
    half = time.perf_counter()
    if passes is None:
        with FlopCounterMode(display=False) as counter:
            stage_backward_weight(case.model.parameters(), groups)
        return int(counter.get_total_flops())
    stage_backward_weight(case.model.parameters(), groups)
    passes.note(middle - begun, half - middle, time.perf_counter() - half)
    return 0


# -- floating-point operations -----------------------------------------------------------------------


def flops_in_weight_pass(case: Case, split: fxpipe.Pipeline) -> tuple[float, float]:
    """Of those that gradients of weights take, the share in the weight pass: fxpipe's, torch's."""
    of_weights = _backward_flops(case, True) - _backward_flops(case, False)
    with _counted_weight_pass() as counted:
        _step(split, case)
    return sum(counted) / of_weights, _torch(case) / of_weights


@contextmanager
def _counted_weight_pass() -> Iterator[list[int]]:
    counted: list[int] = []
    run = WeightQueue.run

    def counting(queue: WeightQueue) -> None:
        with FlopCounterMode(display=False) as counter:
            run(queue)
        counted.append(int(counter.get_total_flops()))

    with mock.patch.object(WeightQueue, "run", counting):
        yield counted


def _backward_flops(case: Case, weights: bool) -> int:
    model = copy.deepcopy(case.model).requires_grad_(weights)
    loss = _loss(model(case.x.clone().requires_grad_()))
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return int(counter.get_total_flops())


if __name__ == "__main__":
    main()
