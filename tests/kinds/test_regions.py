"""Regions of forward with another mode, and activation checkpoints of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import fxpipe
from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(Block(), nn.Dropout(drop)) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        for block in self.blocks[1:]:
            if self.training:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return x


class CheckpointedParts(nn.Module):
    """Checkpoints of closures, of several values, nested, and without kept random state."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def pair(self, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        inner = checkpoint(self.two, a, use_reentrant=False)
        return inner + b, (a - b) * scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        a, b = checkpoint(self.pair, h, x, scale=0.5, use_reentrant=False, preserve_rng_state=False)
        return checkpoint(lambda t: self.three(t) + b, a, use_reentrant=False)


class CheckpointedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(), Block(), Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.body, 2, x, use_reentrant=False)


class Autocasts(nn.Module):
    """Regions in half precision, one switched off inside, one as a decorator."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.four = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(self, x: Tensor) -> Tensor:
        return self.four(x)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.one(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.two(h)
            with torch.autocast("cpu", enabled=False):
                h = self.three(h.float())
            h = h @ h.mT.new_ones(WIDTH, WIDTH)
        return self.decorated(torch.tanh(h)).float() + self.one(x)


class GradModes(nn.Module):
    """`no_grad`, `enable_grad` within, `set_grad_enabled` as a function, `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    @torch.no_grad()
    def statistics(self, x: Tensor) -> Tensor:
        return x.std(-1, keepdim=True) + 1

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.one(x)
        h = self.two(fixed)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        gate = self.three(h).sigmoid()
        torch.set_grad_enabled(before)
        with torch.set_grad_enabled(self.training):
            h = h / self.statistics(h)
        return self.three(h * gate) + self.one(x).detach()


class Drops(nn.Module):
    """Every dropout that depends on the training flag, or does not."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.rate = Block(), Block(), 0.3
        self.layers = nn.Sequential(nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.one(x), p=self.rate, training=self.training)
        x = F.dropout(x, 0.2, self.training, inplace=True)
        x = self.layers(x)
        if self.training:
            x = x + torch.randn_like(x) * 0.1
            x = x * torch.bernoulli(torch.full_like(x, 0.9))
        return self.two(x)


class Penalty(nn.Module):
    """The gradient of an energy, taken inside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.last = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(
                self.energy(place).square().sum(), place, create_graph=self.training
            )
        return self.last(x - 0.1 * force)


class Inference(nn.Module):
    """A part in inference mode: its values take no part in gradients."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Block()

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                y = self.layer(x)
            return y.clone()

    def __init__(self) -> None:
        super().__init__()
        self.one, self.part, self.last = Block(), self.Part(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.one(x) + self.part(x))


class OtherKernels(nn.Module):
    """Attention by one kernel, and tensors that are kept for the backward in half precision."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Block()

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)[:, None]
            with sdpa_kernel(SDPBackend.MATH):
                h = F.scaled_dot_product_attention(h, h, h)
            with saved_tensors_hooks(Tensor.bfloat16, Tensor.float):
                h = torch.tanh(h)
            return h[:, 0] + x

    def __init__(self) -> None:
        super().__init__()
        self.one, self.part, self.last = Block(), self.Part(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.part(self.one(x)))


class Teacher(nn.Module):
    """A net beside itself with slower weights."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.slow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                slow = functional_call(self.net, dict(self.slow.named_parameters()), (x,))
            return self.net(x) - slow

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pair, self.last = Block(), self.Pair(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pair(self.one(x)))


KINDS = {
    "other kernels": Kind(OtherKernels, vectors(WIDTH)),
    "a teacher": Kind(Teacher, vectors(WIDTH)),
    "checkpoints": Kind(lambda: Checkpointed(False), vectors(WIDTH)),
    "reentrant checkpoints": Kind(lambda: Checkpointed(True), vectors(WIDTH)),
    "parts in checkpoints": Kind(CheckpointedParts, vectors(WIDTH)),
    "a sequence in checkpoints": Kind(CheckpointedSequence, vectors(WIDTH)),
    "autocast": Kind(Autocasts, vectors(WIDTH), tied=None),
    "grad modes": Kind(GradModes, vectors(WIDTH), tied=None),
    "an energy": Kind(Penalty, vectors(WIDTH), cuts=("last",)),
    "inference mode": Kind(Inference, vectors(WIDTH)),
    "dropouts": Kind(Drops, vectors(WIDTH), random=True),
}


@each(KINDS)
def test_modes_hold_where_they_hold_in_eager(kind: Kind) -> None:
    assert_works(kind)


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "reentrant": partial(Checkpointed, True, 0.3),
    "not reentrant": partial(Checkpointed, False, 0.3),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_dropout_in_checkpoints_is_drawn_alike(name: str, recompute: str) -> None:
    """The mask of the backward's forward is that of the first, in any number of stages."""
    kind = Kind(MAKERS[name], vectors(WIDTH), random=True, cuts=("blocks.1", "blocks.2"))
    found = []
    for stages in (1, 3):
        model = kind.model()
        with kind.pipe(model, stages, recompute=recompute if stages > 1 else "never") as pipe:
            args, _ = kind.data(6)
            loss = pipe.step(*args, loss_fn=kind.loss).loss
        found.append([loss, *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))


class InferenceRoot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x * 2


def test_inference_mode_in_the_model_s_own_forward_is_told() -> None:
    with pytest.raises(fxpipe.CaptureError, match="inference mode"):
        fxpipe.trace(InferenceRoot(), (torch.ones(2),))
