"""`profile`: costs of every node by measurement, on one micro-batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

import torch

from fxpipe.analysis.grad_mode import followed
from fxpipe.analysis.inputs import placeholder_values, rows
from fxpipe.analysis.meter import WallClock
from fxpipe.analysis.metered_run import MeteredRun
from fxpipe.analysis.observe import Sample, observe
from fxpipe.analysis.progress import progress as progress_bar
from fxpipe.analysis.sharing import parameter_bytes
from fxpipe.analysis.undisturbed import devices_of, undisturbed
from fxpipe.ir.cost import CostProfile, NodeCost
from fxpipe.ir.spec import spec_bytes
from fxpipe.outside_inference import outside_inference

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture

_BUDGET: Final = 4.0
_FEWEST, _MOST = 2, 15


def profile(
    capture: Capture,
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    repeats: int | None = None,
    progress: bool = True,
) -> CostProfile:
    """Measured costs of every node of the body.

    The graph is run node by node on the given inputs, building one autograd graph, and then backward
    for real: no node is cut off from its neighbours. A warm-up counts the bytes saved for backward
    (unique storages; parameters, buffers and model inputs left out). Then follow rounds with the
    parameters' gradients, and rounds without: the difference is `NodeCost.weight`. Each figure is the
    median over the rounds. Nothing of the model changes: buffers, random generators, ``.grad``,
    training flags; every round finds them as they were. Where no output is differentiable, and where
    the backward fails (with a warning), only the forward is measured.

    Args:
        capture: what to measure.
        model: the module it was recorded from, where it is to run: times hold for its device.
        args: positional inputs of one micro-batch.
        kwargs: keyword inputs.
        repeats: number of rounds; None: as many as fit in some seconds, 2 to 15.
        progress: show a bar on a terminal if it takes long.

    Raises:
        CaptureError: if the inputs do not match the capture.
    """
    values = placeholder_values(capture, args, kwargs or {})
    trains = followed(capture)
    clock = WallClock(devices_of(model, *values))

    def once(**options: bool) -> Sample:
        run = MeteredRun(capture, model, clock)
        with (
            outside_inference(model),
            undisturbed(model, capture.training, capture.changed_state),
            torch.set_grad_enabled(trains),
        ):
            inputs = [_fresh(value) for value in values]
            return observe(capture, model, run, inputs, **options)

    with progress_bar("measuring the model", progress) as step:
        saved = once(count_saved=True).saved
        step()
        begun = time.perf_counter()
        samples, inputs_only = [once()], []
        rounds = repeats or _affordable(time.perf_counter() - begun)
        for index in range(rounds):
            step(total=rounds + 1)
            if trains and index % 2 == 0:
                inputs_only.append(once(weights=False))
            if index > 0:
                samples.append(once())
    _warn_of_failures([*samples, *inputs_only])
    return cost_profile(
        capture, model, "measure", rows(capture, values), samples, inputs_only, saved
    )


def _warn_of_failures(samples: Sequence[Sample]) -> None:
    """Say that backwards failed, and count none then: half of them would count as a saving."""
    failure = next((sample.failure for sample in samples if sample.failure), "")
    if failure:
        for sample in samples:
            sample.backward = {}
        warnings.warn(
            f"the costs are those of the forward alone, as the backward fails ({failure})",
            stacklevel=3,
        )


def _affordable(seconds: float) -> int:
    """How many rounds of that length fit in the budget, three halves each."""
    return max(_FEWEST, min(_MOST, int(_BUDGET / (1.5 * seconds + 1e-9))))


def cost_profile(
    capture: Capture,
    model: torch.nn.Module,
    source: str,
    batch_size: int,
    samples: Sequence[Sample],
    inputs_only: Sequence[Sample],
    saved: Mapping[str, int],
) -> CostProfile:
    """The profile that some observations amount to."""

    def node_cost(name: str) -> NodeCost:
        backward = median_low(sample.backward.get(name, 0.0) for sample in samples)
        inputs = [sample.backward.get(name, 0.0) for sample in inputs_only]
        return NodeCost(
            forward=median_low(s.forward[name] for s in (*samples, *inputs_only)),
            backward=backward,
            weight=max(0.0, backward - median_low(inputs)) if inputs else 0.0,
            flops=samples[0].flops[name],
            saved_bytes=saved[name],
            output_bytes=spec_bytes(capture.spec(name)),
        )

    return CostProfile(
        nodes={node.name: node_cost(node.name) for node in capture.body},
        source=source,
        batch_size=batch_size,
        fingerprint=capture.fingerprint(),
        parameter_bytes=parameter_bytes(capture, model),
    )


def _fresh(value: Any) -> Any:
    """An input of its own for each run: the model may write into it."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)
