"""The models as torchgpipe needs them: one flat nn.Sequential, each skip stashed and popped by hand.

They take their layers from a plain model and share its parameters, so results can be compared.
torchgpipe is imported on use: without it the other experiments still run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.models.amoebanet import AmoebaNetD
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet, pad_to


class _Upsample(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2)


def unet(model: UNet) -> nn.Sequential:
    """U-Net (B, C): every encoder output is stashed, and popped before the decoder cell of its level."""
    from torchgpipe.skip import Namespace, pop, skippable, stash

    @skippable(stash=["skip"])
    class Stash(nn.Module):
        def forward(self, x: Tensor) -> Iterator[object]:
            yield stash("skip", x)
            return x

    @skippable(pop=["skip"])
    class PopAndJoin(nn.Module):
        def forward(self, x: Tensor) -> Iterator[object]:
            skip = yield pop("skip")
            return torch.cat([pad_to(x, skip), skip], dim=1)

    layers: list[nn.Module] = []
    names = [Namespace() for _ in model.encoder]
    for cell, name in zip(model.encoder, names, strict=True):
        layers += [*cell, Stash().isolate(name), nn.MaxPool2d(2)]
    layers += [*model.bottleneck]
    for cell, name in zip(model.decoder, reversed(names), strict=True):
        layers += [_Upsample(), PopAndJoin().isolate(name), *cell]
    return nn.Sequential(*layers, model.head)


def transformer(model: TransformerStack) -> nn.Sequential:
    """The blocks one after another."""
    return nn.Sequential(*model.blocks, model.norm)


class _Start(nn.Module):
    def __init__(self, stem: nn.Module) -> None:
        super().__init__()
        self.stem = stem

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        return x, x


class _Step(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, states: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.cell(*states)


class _Classify(nn.Module):
    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, states: tuple[Tensor, Tensor]) -> Tensor:
        x, _ = states
        return self.classifier(F.avg_pool2d(x, min(7, x.shape[-1])).flatten(1))


def amoebanet(model: AmoebaNetD) -> nn.Sequential:
    """Cells that pass a pair of tensors on."""
    steps = [_Step(cell) for cell in model.cells]
    return nn.Sequential(_Start(model.stem), *steps, _Classify(model.classifier))
