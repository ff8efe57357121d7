"""Draws the pictures of the README: ``python docs/images/draw.py``."""

from __future__ import annotations

from pathlib import Path

import torch
from monai.networks.nets import BasicUNet

import fxpipe

HERE = Path(__file__).parent


def main() -> None:
    torch.manual_seed(0)
    model = BasicUNet(
        spatial_dims=2, in_channels=1, out_channels=2, features=(32, 32, 64, 128, 256, 32)
    )
    capture = fxpipe.trace(model, (torch.randn(4, 1, 64, 64),))
    costs = fxpipe.estimate(capture, model)
    plan = fxpipe.partition(capture, costs, stages=4, cuts=["down_2", "down_4", "upcat_2"])
    graph = fxpipe.link(capture, plan)
    (HERE / "unet.svg").write_text(fxpipe.render(graph, "svg", plan=plan), encoding="utf-8")


if __name__ == "__main__":
    main()
