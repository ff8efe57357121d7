"""The hand-written sequential models compute what the plain ones do."""

from __future__ import annotations

import pytest
import torch

from benchmarks.workloads import Workload, workloads


@pytest.mark.parametrize("workload", workloads(quick=True), ids=lambda workload: workload.name)
def test_torchgpipe_runs_the_same_model(workload: Workload) -> None:
    torchgpipe = pytest.importorskip("torchgpipe")
    model = workload.make().eval()
    x, _ = workload.batch()
    layers = workload.as_sequential(model)
    pipe = torchgpipe.GPipe(
        layers, [1, len(layers) - 1], devices=["cpu", "cpu"], chunks=1, checkpoint="never"
    ).eval()
    with torch.no_grad():
        assert torch.equal(pipe(x), model(x))
