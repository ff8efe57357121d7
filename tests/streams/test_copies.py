"""Two copies of every stage on virtual devices: each device has the weights of both its stages."""

from __future__ import annotations

import pytest
import torch

from tests.streams.test_pipeline import MODELS, accelerator, on_cpus, pipeline, use
from tests.virtual.accelerator import VirtualAccelerator

__all__ = ["accelerator"]


RUNS = [*((model, "chimera") for model in MODELS), ("skips", "dualpipe"), ("tied", "dualpipe")]


@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize("places", [(0, 1), (0, 0)], ids=["two devices", "one device"])
@pytest.mark.parametrize(("model", "schedule"), RUNS)
def test_no_hazard_and_the_same_bits(
    model: str,
    places: tuple[int, int],
    backend: str,
    schedule: str,
    accelerator: VirtualAccelerator,
) -> None:
    pipe, x = pipeline(model, list(places), backend, schedule)
    with accelerator.watch():
        found = use(pipe, x)
        accelerator.synchronize_all()
        found = {name: accelerator.read(tensor) for name, tensor in found.items()}
        pipe.close()
    expected = on_cpus(model, schedule)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
