"""MONAI: segmentation and classification networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Entry


def images(*shape: int) -> Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Normally distributed images of one shape [channels, height, width]."""

    def batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        g = torch.Generator().manual_seed(seed)
        return (torch.randn(rows, *shape, generator=g),), {}

    return batch


def _unet(dropout: float = 0.0) -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=2, dropout=dropout)


def _basic_unet() -> nn.Module:
    from monai.networks.nets import BasicUNet

    return BasicUNet(2, 1, 2, features=(4, 4, 8, 8, 16, 4))


def _attention_unet() -> nn.Module:
    from monai.networks.nets import AttentionUnet

    return AttentionUnet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2))


def _unetr() -> nn.Module:
    from monai.networks.nets import UNETR

    return UNETR(
        1, 2, (32, 32), feature_size=4, hidden_size=16, mlp_dim=32, num_heads=2, spatial_dims=2
    )


def _seg_res_net() -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(
        2, init_filters=8, in_channels=1, blocks_down=(1, 1, 2), blocks_up=(1, 1), num_groups=4
    )


def _dense_net() -> nn.Module:
    from monai.networks.nets import DenseNet121

    return DenseNet121(2, 1, 3, init_features=8, growth_rate=4)


ENTRIES = (
    Entry("MONAI UNet", "MONAI", _unet, images(1, 16, 16), with_dropout=partial(_unet, 0.2)),
    Entry("MONAI BasicUNet", "MONAI", _basic_unet, images(1, 32, 32)),
    Entry("MONAI AttentionUnet", "MONAI", _attention_unet, images(1, 16, 16)),
    Entry("MONAI UNETR", "MONAI", _unetr, images(1, 32, 32), slow=True),
    Entry("MONAI SegResNet", "MONAI", _seg_res_net, images(1, 16, 16)),
    Entry(
        "MONAI DenseNet121",
        "MONAI",
        _dense_net,
        images(1, 32, 32),
        sizes=(5, 7),  # batch norm over a single pixel needs two rows
        slow=True,
    ),
)
