"""Lanes alone, under a pipeline of two stages written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fxpipe.runtime.devices import open_lane
from tests.streams.callers import CALLERS, Caller, Streams
from tests.streams.two_stages import TwoStages, batches, parameters, plain_step, stages
from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.faults import Call, FaultyAccelerator
from tests.virtual.memory import HOST

MICRO_BATCHES = 4
DEVICES = {"two devices": (0, 1), "two ranks on one device": (0, 0)}
PLACES = DEVICES | {"host, then device": (None, 0), "device, then host": (0, None)}


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
    weights = parameters((encoder, decoder))
    optimiser = torch.optim.SGD(weights, lr=0.1)
    streams = Streams(accelerator, caller)
    results: list[tuple[list[Tensor], list[Tensor]]] = []
    for _ in range(2):
        with streams.calling():
            data = [tuple(streams.load(pair)) for pair in batches(MICRO_BATCHES)]
            losses = pipeline.step(data)
            del data
            optimiser.step()
            gradients = [weight.grad.clone() for weight in weights]
            optimiser.zero_grad(set_to_none=True)
            streams.updated()
            results.append(([loss.clone() for loss in losses], gradients))
            del losses, gradients
    accelerator.synchronize_all()
    losses, gradients = results[0]
    return [accelerator.read(loss) for loss in losses], list(map(accelerator.read, gradients))


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_no_hazard_and_the_same_bits(places: tuple[int | None, ...], caller: Caller) -> None:
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
        whole = FaultyAccelerator(2)
        with whole.watch():
            train(whole, places, caller)
        for call in whole.calls_of_lanes:
            if not reported.get(call):
                faulty = FaultyAccelerator(2, left_out=call)
                with faulty.watch():
                    train(faulty, places, caller)
                reported[call] = bool(faulty.report)
    assert len(reported) >= 10
    assert [str(call) for call, was_reported in reported.items() if not was_reported] == []
