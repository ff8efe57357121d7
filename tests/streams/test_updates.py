"""The optimiser's step stage by stage on virtual devices: no hazard, and the bits of the whole step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fxpipe
from fxpipe.runtime.devices import open_lane
from tests.streams.test_pipeline import Results, _first, accelerator, pipeline
from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.memory import HOST

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
    expected = on_cpus(model, schedule)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def on_cpus(name: str, schedule: str) -> Results:
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr("fxpipe.pipeline.open_lane", lambda device: open_lane(HOST))
        plain.setattr("fxpipe.compiler.resolve_devices", lambda names: (HOST, HOST))
        pipe, x = pipeline(name, [HOST, HOST], "inline", schedule)
        return train(pipe, x, by_stage=False)
