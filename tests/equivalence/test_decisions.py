"""Models that decide on their data: micro-batches of one step may go different ways."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import CaptureError
from tests.equivalence.compare import same
from tests.losses import mean_square
from tests.reference import run_eager_step


class Net(nn.Module):
    """Three layers that share the parameters evenly, so that none is small."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def rest(self, h: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(h).relu())
        return y


class Counts(Net):
    """Warms up for some micro-batches."""

    def __init__(self) -> None:
        super().__init__(steps=torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        h = self.a(x)
        if self.steps > 6:
            h = h * 2
        return self.rest(h)


class Initialises(Net):
    """Sets its scale from the first data it sees, as activation norms do."""

    def __init__(self) -> None:
        super().__init__(ready=torch.tensor(False), scale=torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if not self.ready:
            self.scale.copy_(x.detach().abs().mean())
            self.ready.fill_(True)
        return self.rest(h * self.scale)


class Replaces(Initialises):
    """Puts another tensor in the place of the flag."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if not self.ready:
            self.ready = torch.tensor(True)
            h = h + 1
        return self.rest(h)


class Turns(Net):
    """What one way writes, the other one reads."""

    def __init__(self) -> None:
        super().__init__(mean=torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if x.max() > 1.8:
            self.mean.mul_(0.5).add_(h.detach().mean())
        else:
            h = h * self.mean
        return self.rest(h)


class Asks(Net):
    """Decides on its input in several ways."""

    def forward(self, x: Tensor) -> Tensor:
        assert torch.isfinite(x).all()
        while x.abs().max() > 3:
            x = x / 2
        low, high = x.aminmax()
        h = self.a(x)
        if low < -1.2 and high > 1.2:
            h = h * 2
        if torch.equal(x, x.abs()):
            h = h + 1
        return self.rest(h) / max(1, int((x[:, 0] > 0).any()) + 1)


class Smooths(Net):
    def __init__(self) -> None:
        super().__init__(average=torch.tensor(0.01))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        self.average.mul_(0.9).add_(x.detach().mean() * 0.5)
        if self.average > 0.02:
            h = h * 2
        return self.rest(h)


CASES: list[tuple[Callable[[], Net], int]] = [
    (Counts, 2), (Initialises, 2), (Replaces, 2), (Turns, 2), (Asks, 3), (Smooths, 2),
]  # fmt: skip


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize(("make", "ways"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_steps(make: Callable[[], Net], ways: int, recompute: Any) -> None:
    torch.manual_seed(3)
    model = make()
    eager = copy.deepcopy(model)
    before = dict(model.named_buffers())
    with fxpipe.compile(
        model, ["cpu"] * 2, 4, costs="estimate", threads_per_rank=1, recompute=recompute
    ) as pipe:
        for _ in range(4):
            x = torch.randn(8, 4)
            wanted = run_eager_step(eager, (x,), chunks=4, loss_fn=mean_square)
            same(pipe.step(x, loss_fn=mean_square).loss, wanted.loss, "loss")
        assert pipe._made.capture.leaves == ()
        (situation,) = pipe._recordings._situations.values()
        assert len(situation.siblings) >= ways
    for (name, one), two in zip(model.named_parameters(), eager.parameters(), strict=True):
        same(one.grad, two.grad, name)
    for (name, one), two in zip(model.named_buffers(), eager.buffers(), strict=True):
        same(one, two, name)
        assert one is before[name] or make is Replaces, "a buffer stays the object it was"


@pytest.mark.parametrize("make", [m for m, _ in CASES if m is not Turns])
def test_calls(make: Callable[[], Net]) -> None:
    """Turns cannot be called so in eager: a forward changes what the graphs before it have saved."""
    torch.manual_seed(4)
    model = make()
    eager = copy.deepcopy(model)
    with fxpipe.compile(model, ["cpu"] * 2, 4, costs="estimate", threads_per_rank=1) as pipe:
        for _ in range(3):
            x = torch.randn(8, 4)
            parts = [eager(part) for part in x.tensor_split(4)]
            output = pipe(x)
            same(output.detach(), torch.cat(parts).detach(), "output")
            mean_square(output).backward()
            torch.cat(parts).square().mean().backward()
    for (name, one), two in zip(model.named_buffers(), eager.buffers(), strict=True):
        same(one, two, name)
    for one, two in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


class Loops(Net):
    """As many steps as its first row says."""

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        for _ in range(int(times.max())):
            x = self.a(x)
        return self.rest(x)


def test_more_ways_than_allowed_are_told_with_the_line() -> None:
    model = Loops()
    x = torch.randn(4, 4)
    with fxpipe.compile(
        model, ["cpu"] * 2, 4, costs="estimate", threads_per_rank=1, max_variants=3
    ) as pipe:
        pipe.step(x, torch.tensor([1, 2, 3, 3]), loss_fn=mean_square)
        with pytest.raises(CaptureError, match="in more than 3 ways") as caught:
            pipe.step(x, torch.tensor([1, 2, 3, 4]), loss_fn=mean_square)
        assert "for _ in range(int(times.max())):" in str(caught.value)
        assert "raise max_variants" in str(caught.value)
        pipe.step(x, torch.tensor([3, 3, 1, 2]), loss_fn=mean_square)


@pytest.mark.parametrize(
    ("decide", "where"),
    [
        (lambda net, x: net.a(x).max() > 0, "values of tensors"),
        (lambda net, x: net.a.weight.norm() > 1, "values of tensors"),
        (lambda net, x: x.max().item() * 2 > 1, "fractional number"),
    ],
)
def test_decisions_that_cannot_be_known_before_are_refused(decide: Any, where: str) -> None:
    class Decides(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.rest(x if decide(self, x) else -x)

    with pytest.raises(CaptureError, match=where) as caught:
        fxpipe.trace(Decides(), (torch.randn(4, 4),))
    assert "What to do: " in str(caught.value)


class FillsOnce(nn.Module):
    """Takes its offset from the first batch that it sees, as activation norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.offset.sum() == 0:
            self.offset.copy_(x.detach().mean(0) + 1)
        return self.inner(x - self.offset)


@pytest.mark.parametrize("costs", ["estimate", "measure"])
def test_a_module_that_decides_on_what_layers_left_in_it_is_not_divided(costs: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), FillsOnce(), nn.Linear(4, 4), nn.Linear(4, 4))
    twin, fresh = copy.deepcopy(model), copy.deepcopy(model)
    x = torch.randn(4, 4)
    with fxpipe.compile(model, ["cpu"] * 2, 2, costs=costs) as pipe, torch.no_grad():
        assert torch.equal(pipe(x), torch.cat([twin(part) for part in x.chunk(2)]))
    capture = fxpipe.trace(fresh, (x,))
    inside = next(node.name for node in capture.body if node.target == "1.inner")
    with pytest.raises(fxpipe.IllegalPlanError, match=r"decides on '1\.offset', which layers fill"):
        fxpipe.partition(capture, fxpipe.estimate(capture, fresh), 2, cuts=[inside])
