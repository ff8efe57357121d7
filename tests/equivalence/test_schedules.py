"""Every schedule gives the gradients of the micro-batches run one after another, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from examples.models.unet import UNet
from fxpipe.schedules.registry import SCHEDULES
from tests.equivalence.compare import grads_of, same_grads
from tests.equivalence.split_models import MODELS, WIDTH, Block, Convolutions
from tests.losses import cross_entropy
from tests.reference import run_eager_step

TWO_COPIES = ("dualpipe", "chimera")
"""Equal up to rounding only: see `tests.equivalence.test_copies`."""
RUN = [
    (name, per_rank)
    for name in SCHEDULES
    if name not in ("forward", *TWO_COPIES)
    for per_rank in (1, 2, 4)
]


class Decoder(nn.Module):
    """Blocks between an embedding and a head that have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.head = nn.Linear(WIDTH, 23, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def decoder() -> tuple[nn.Module, Tensor, Tensor]:
    ids = torch.randint(0, 23, (8, 6))
    return Decoder(), ids, ids


def unet() -> tuple[nn.Module, Tensor, Tensor]:
    model = UNet(2, 4)
    for module in model.modules():
        if isinstance(module, nn.Dropout2d | nn.Dropout):
            module.p = 0.0  # a dropout is keyed, and eager's is not
    return model, torch.randn(8, 3, 64, 64), torch.randn(8, 1, 64, 64)


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target.mean()).square().mean()


def compare(
    make: Callable[[], tuple[nn.Module, Tensor, Tensor]],
    loss_fn: Callable[[Any, Any], Tensor],
    autocast: Callable[[], Any] = nullcontext,
    **options: Any,
) -> None:
    torch.manual_seed(3)
    model, x, target = make()
    torch.manual_seed(3)
    reference = make()[0]  # a deep copy would lack the hooks of parameters
    eager = run_eager_step(
        reference, (x,), chunks=4, loss_fn=loss_fn, target=target, autocast=autocast
    )
    options = {"chunks": 4, "costs": "estimate", "threads_per_rank": 1, **options}
    with fxpipe.compile(model, ["cpu", "cpu"], **options) as pipe:
        with autocast():
            result = pipe.step(x, target=target, loss_fn=loss_fn)
        assert torch.equal(result.loss, eager.loss)
        same_grads(pipe, grads_of(reference), str(options["schedule"]))


@pytest.mark.parametrize(
    ("name", "per_rank", "backend"),
    [
        (*run, backend)
        for run in RUN
        for backend in (("inline", "local") if run[1] == 2 else ("local",))
    ],
)
def test_a_unet_with_skips(name: str, per_rank: int, backend: str) -> None:
    compare(unet, squares, schedule=name, stages_per_rank=per_rank, backend=backend)


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize(("name", "per_rank"), RUN)
def test_a_decoder_with_tied_embeddings(name: str, per_rank: int, recompute: str) -> None:
    compare(decoder, cross_entropy, schedule=name, stages_per_rank=per_rank, recompute=recompute)


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("kind", MODELS)
def test_what_comes_in_the_way_of_a_split(kind: str, recompute: str) -> None:
    def make() -> tuple[nn.Module, Tensor, Tensor]:
        model = MODELS[kind]()
        if isinstance(model, Convolutions):
            return model, torch.randint(0, 11, (8, 6)), torch.randn(8)
        return model, torch.randn(8, 5, WIDTH), torch.randn(8)

    compare(make, squares, schedule="zb-h1", recompute=recompute)


@pytest.mark.parametrize("kind", ["blocks", "a weight used again", "own multiplications"])
def test_autocast(kind: str) -> None:
    compare(
        lambda: (MODELS[kind](), torch.randn(8, 5, WIDTH), torch.randn(8)),
        squares,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
        schedule="zb-h1",
    )


def test_a_recomputation_of_its_own() -> None:
    text = "0F0 0F1 0F2 0F3 0R0 0I0 0W0 0R1 0I1 0W1 0R2 0B2 0R3 0I3 0W3\n" + (
        "1F0 1F1 1R0 1I0 1F2 1R1 1I1 1F3 1W0 1W1 1R2 1I2 1R3 1I3 1W2 1W3"
    )
    compare(unet, squares, schedule=fxpipe.Schedule.from_text(text), recompute="always")


def train(name: str, per_rank: int) -> tuple[list[Tensor], list[Tensor]]:
    """Losses and weights of three steps."""
    torch.manual_seed(5)
    model, ids, _ = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with fxpipe.compile(
        model,
        ["cpu", "cpu"],
        chunks=4,
        schedule=name,
        stages_per_rank=per_rank,
        costs="estimate",
        threads_per_rank=1,
        seed=0,
    ) as pipe:
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(pipe.step(ids, target=ids, loss_fn=cross_entropy).loss)
            optimizer.step()
    return losses, [parameter.detach() for parameter in model.parameters()]


@cache
def with_1f1b() -> tuple[list[Tensor], list[Tensor]]:
    return train("1f1b", 1)


@pytest.mark.parametrize(("name", "per_rank"), RUN)
def test_a_training_run_is_that_of_1f1b(name: str, per_rank: int) -> None:
    for found, expected in zip(train(name, per_rank), with_1f1b(), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
