"""What the README says of other libraries, tried on the installed versions (or skipped)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe


class Skips(nn.Module):
    """A value made before the first cut and read after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.b = nn.Linear(4, 4)
        self.c = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.drop(self.a(x))
        return self.c(self.b(skip).relu()) + skip


@pytest.fixture
def three_ranks() -> Iterator[None]:
    """A process group that sends nothing: enough to ask what a stage accepts."""
    distributed = torch.distributed
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=3)
    yield
    distributed.destroy_process_group()


def traced() -> object:
    from torch.distributed.pipelining import SplitPoint, pipeline

    cuts = {"b": SplitPoint.BEGINNING, "c": SplitPoint.BEGINNING}
    return pipeline(Skips(), mb_args=(torch.randn(2, 4),), split_spec=cuts)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("three_ranks")
def test_torch_pipelining_has_no_backward_of_traced_skips() -> None:
    from torch.distributed.pipelining import ScheduleGPipe

    stage = traced().build_stage(0, torch.device("cpu"))
    with pytest.raises(Exception, match="Backward of skip connections not supported"):
        ScheduleGPipe(stage, 2, loss_fn=F.mse_loss).step(torch.randn(4, 4))


@pytest.mark.filterwarnings("ignore")
def test_torch_pipelining_fixes_the_mode_when_traced() -> None:
    stage = traced().get_stage_module(0)
    stage.eval()
    first, second = stage(torch.ones(2, 4)), stage(torch.ones(2, 4))
    assert not torch.equal(_leaf(first), _leaf(second))  # dropout goes on


def _leaf(value: Tensor | tuple[Tensor, ...]) -> Tensor:
    return value if isinstance(value, Tensor) else value[0]


def test_torchgpipe_takes_sequential_models_only() -> None:
    torchgpipe = pytest.importorskip("torchgpipe")
    with pytest.raises(TypeError, match=r"nn\.Sequential"):
        torchgpipe.GPipe(Skips(), [1, 1], devices=["cpu", "cpu"], chunks=2)


def test_torchgpipe_draws_other_numbers_for_other_numbers_of_stages() -> None:
    torchgpipe = pytest.importorskip("torchgpipe")
    layers = [nn.Dropout(0.5), nn.Dropout(0.5)]

    def output(balance: list[int]) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(*layers)
        devices = ["cpu"] * len(balance)
        return torchgpipe.GPipe(model, balance, devices=devices, chunks=4)(torch.ones(8, 64))

    assert not torch.equal(output([2]), output([1, 1]))


def test_fxpipe_does_each_of_these() -> None:
    model, x = Skips(), torch.randn(4, 4)
    gradients = []
    for stages, cuts in ((1, []), (2, ["b"]), (3, ["b", "c"])):
        torch.manual_seed(0)
        model.zero_grad()
        with fxpipe.compile(model, devices=["cpu"] * stages, chunks=2, cuts=cuts) as pipe:
            pipe.step(x, target=torch.zeros(4, 4), loss_fn=F.mse_loss)
            gradients.append([p.grad.clone() for p in model.parameters()])
            if stages == 3:
                assert [edge.value for edge in pipe.stage_graph.portals] == ["drop"]
            pipe.eval()
            assert torch.equal(pipe(x), pipe(x))
            torch.testing.assert_close(pipe(x), model(x))  # rows in one product, or in two
            pipe.train()
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))
