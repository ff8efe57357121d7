"""The optimiser's step stage by stage on virtual devices: no hazard, and the bits of the whole step."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import fxpipe
from tests.streams.test_pipeline import Results, _first, accelerator, on_cpus, pipeline
from tests.virtual.accelerator import VirtualAccelerator

__all__ = ["accelerator"]


def train(pipe: fxpipe.Pipeline, x: Tensor, *, by_stage: bool) -> Results:
    """Two steps, an evaluation, and one more step of the optimiser on its own."""
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.1)
    for _ in range(2):
        told = {"optimizer": optimizer} if by_stage else {}
        pipe.step(x, loss_fn=lambda output, _: _first(output).float().square().mean(), **told)
        if not by_stage:
            optimizer.step()
    pipe.eval()
    with torch.no_grad():
        found = {"evaluation": _first(pipe(x)) * 1}
    optimizer.step()
    return found | {name: parameter.detach().clone() for name, parameter in pipe.named_parameters()}


@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize("places", [(0, 1), (0, 0)], ids=["two devices", "one device"])
@pytest.mark.parametrize(
    ("model", "schedule"), [("skips", "1f1b"), ("tied", "1f1b"), ("plain", "chimera")]
)
def test_no_hazard_and_the_same_bits(
    model: str,
    schedule: str,
    places: tuple[int, int],
    backend: str,
    accelerator: VirtualAccelerator,
) -> None:
    pipe, x = pipeline(model, list(places), backend, schedule)
    with accelerator.watch():
        found = train(pipe, x, by_stage=True)
        accelerator.synchronize_all()
        found = {name: accelerator.read(tensor) for name, tensor in found.items()}
        pipe.close()
    expected = on_cpus(model, schedule, partial(train, by_stage=False))
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
