"""Lanes alone, under a pipeline of two stages written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fxpipe.runtime.devices import open_lane
from tests.streams.two_stages import TwoStages, batches, parameters, plain_step, stages
from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.faults import Call, FaultyAccelerator
from tests.virtual.memory import HOST

MICRO_BATCHES = 4
DEVICES = {"two devices": (0, 1), "two ranks on one device": (0, 0)}
PLACES = DEVICES | {"host, then device": (None, 0), "device, then host": (0, None)}


@dataclass(frozen=True)
class Caller:
    """How a step is called.

    Attributes:
        inputs: the device of the inputs; None: the host.
        has_loader: inputs are made on a stream of their own, by a data loader running ahead.
        has_side_streams: each step is called from new streams, which wait for the last optimiser
            step only; the losses are looked at beside the next step.
    """

    inputs: int | None = None
    has_loader: bool = False
    has_side_streams: bool = False


CALLERS = {
    "inputs on the host": Caller(),
    "inputs on the first device": Caller(0, has_loader=True),
    "inputs on the second device": Caller(1, has_loader=True),
    "side streams": Caller(has_side_streams=True),
}


def train(
    accelerator: VirtualAccelerator, places: Sequence[int | None], caller: Caller
) -> tuple[list[Tensor], list[Tensor]]:
    """Two steps as a user would make them; losses and gradients of the first, for the host."""
    lanes = [
        open_lane(HOST if place is None else accelerator.devices[place], accelerator)
        for place in places
    ]
    encoder, decoder = stages()
    for lane, stage in zip(lanes, (encoder, decoder), strict=True):
        lane.adopt([*stage.parameters(), *stage.buffers()])
    pipeline = TwoStages(encoder, decoder, *lanes)
    optimiser = torch.optim.SGD(parameters((encoder, decoder)), lr=0.1)
    loader = [accelerator.open(device) for device in accelerator.devices]
    results: list[tuple[list[Tensor], list[Tensor]]] = []
    updated: list[Any] = []
    for _ in range(2):
        streams = _calling_streams(accelerator, caller)
        with accelerator.use(*streams):
            data = _load(accelerator, caller, loader)
            for stream, made in zip(streams, record(accelerator, loader), strict=True):
                accelerator.wait(stream, made)
            for stream, event in zip(streams, updated, strict=False):
                accelerator.wait(stream, event)
            losses = pipeline.step(data)
            del data
            optimiser.step()
            gradients = [p.grad.clone() for p in parameters((encoder, decoder))]
            optimiser.zero_grad(set_to_none=True)
            updated = record(accelerator, streams)
            results.append(([loss.clone() for loss in losses], gradients))
            del losses, gradients
    accelerator.synchronize_all()
    losses, gradients = results[0]
    return [accelerator.read(loss) for loss in losses], list(map(accelerator.read, gradients))


def record(accelerator: VirtualAccelerator, streams: Sequence[Any]) -> list[Any]:
    return [VirtualAccelerator.record(accelerator, stream) for stream in streams]


def _calling_streams(accelerator: VirtualAccelerator, caller: Caller) -> list[Any]:
    find = accelerator.open if caller.has_side_streams else accelerator.current
    return [find(device) for device in accelerator.devices]


def _load(
    accelerator: VirtualAccelerator, caller: Caller, loader: Sequence[Any]
) -> list[tuple[Tensor, Tensor]]:
    data = batches(MICRO_BATCHES)
    if caller.inputs is None:
        return data
    device = accelerator.devices[caller.inputs]
    with accelerator.use(*(loader if caller.has_loader else ())):
        return [tuple(tensor.to(device) for tensor in pair) for pair in data]


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_no_hazard_and_the_same_bits(places: tuple[int | None, int], caller: Caller) -> None:
    accelerator = VirtualAccelerator(2)
    with accelerator.watch():
        losses, gradients = train(accelerator, places, caller)
    assert not accelerator.report, str(accelerator.report)
    expected_losses, expected_gradients = plain_step(MICRO_BATCHES)
    for got, expected in zip(
        [*losses, *gradients], [*expected_losses, *expected_gradients], strict=True
    ):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("places", DEVICES.values(), ids=DEVICES)
def test_every_call_left_out_is_reported(places: tuple[int | None, ...]) -> None:
    """Each place in the lanes' code that records, waits, keeps or copies is needed by some caller."""
    reported: dict[Call, bool] = {}
    for caller in CALLERS.values():
        for call in _calls(places, caller):
            if not reported.get(call):
                faulty = FaultyAccelerator(2, left_out=call)
                with faulty.watch():
                    train(faulty, places, caller)
                reported[call] = bool(faulty.report)
    assert len(reported) >= 10
    assert [str(call) for call, was_reported in reported.items() if not was_reported] == []


def _calls(places: Sequence[int | None], caller: Caller) -> list[Call]:
    whole = FaultyAccelerator(2)
    with whole.watch():
        train(whole, places, caller)
    return [call for call in dict.fromkeys(whole.calls) if call.is_of_lanes]
