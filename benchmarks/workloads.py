"""The models and batches that the experiments run, with sizes for a machine of a few cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.peers import torchgpipe_models
from examples.models.amoebanet import AmoebaNetD
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet


@dataclass(frozen=True)
class Workload:
    """A plain model, its batch, and the same model (same parameters) as torchgpipe wants it."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    as_sequential: Callable[[nn.Module], nn.Sequential]


def _images(rows: int, size: int, result: tuple[int, ...]) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, 3, size, size, generator=generator)
        return x, torch.randn(rows, *result, generator=generator)

    return make


def _vectors(rows: int, length: int, width: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shape = (rows, length, width)
        return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)

    return make


def workloads(quick: bool) -> list[Workload]:
    """U-Net, Transformer stack, AmoebaNet-D."""
    if quick:
        return [
            Workload(
                "U-Net (1, 4)", lambda: UNet(1, 4), _images(16, 64, (1, 64, 64)), _sequential_unet
            ),
            Workload(
                "Transformer, 2 blocks of 32",
                lambda: TransformerStack(2, 32, 2),
                _vectors(16, 8, 32),
                _sequential_transformer,
            ),
            Workload(
                "AmoebaNet-D (3, 16)",
                lambda: AmoebaNetD(3, 16, classes=10),
                _images(16, 32, (10,)),
                _sequential_amoebanet,
            ),
        ]
    return [
        Workload(
            "U-Net (5, 8), 32 images 128×128",
            lambda: UNet(5, 8),
            _images(32, 128, (1, 128, 128)),
            _sequential_unet,
        ),
        Workload(
            "Transformer, 8 blocks of 256, 64 sequences of 64",
            lambda: TransformerStack(8, 256, 4),
            _vectors(64, 64, 256),
            _sequential_transformer,
        ),
        Workload(
            "AmoebaNet-D (6, 96), 32 images 64×64",
            lambda: AmoebaNetD(6, 96, classes=100),
            _images(32, 64, (100,)),
            _sequential_amoebanet,
        ),
    ]


def _sequential_unet(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, UNet)
    return torchgpipe_models.unet(model)


def _sequential_transformer(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, TransformerStack)
    return torchgpipe_models.transformer(model)


def _sequential_amoebanet(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, AmoebaNetD)
    return torchgpipe_models.amoebanet(model)
