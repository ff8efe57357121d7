"""A recommendation model in the manner of DLRM: embedding bags, dense features, dot interactions.

Naumov et al. 2019, "Deep learning recommendation model for personalization and recommendation
systems".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

PADDING = 0
"""The id that fills up bags of fewer ids."""


def perceptron(widths: Sequence[int], *, ends_with_relu: bool) -> nn.Sequential:
    """Linear layers of the given widths with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if ends_with_relu else layers[:-1]))


class Interaction(nn.Module):
    """The dot products of all pairs of feature vectors, behind the dense one."""

    def forward(self, dense: Tensor, sparse: list[Tensor]) -> Tensor:
        features = torch.stack([dense, *sparse], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        count = features.size(1)
        row, column = torch.tril_indices(count, count, offset=-1, device=dense.device)
        return torch.cat([dense, products[:, row, column]], dim=1)


class DLRM(nn.Module):
    """Click probability (as a logit) from dense numbers and bags of ids.

    Args:
        tables: entries of each embedding table, one per sparse feature.
        dense: number of dense features.
        width: size of each embedding.
        bottom: hidden widths of the perceptron over the dense features.
        top: hidden widths of the one over the interactions.
    """

    def __init__(
        self,
        tables: Sequence[int],
        dense: int = 13,
        width: int = 128,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (1024, 1024, 512, 256),
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(entries, width, mode="sum", padding_idx=PADDING) for entries in tables
        )
        self.bottom = perceptron([dense, *bottom, width], ends_with_relu=True)
        self.interaction = Interaction()
        pairs = (len(tables) + 1) * len(tables) // 2
        self.top = perceptron([width + pairs, *top, 1], ends_with_relu=False)

    def forward(self, dense: Tensor, sparse: list[Tensor]) -> Tensor:
        """Logits [batch] from dense [batch, features] and a list of ids [batch, bag], one per table."""
        bags = [table(ids) for table, ids in zip(self.tables, sparse, strict=True)]
        return self.top(self.interaction(self.bottom(dense), bags)).squeeze(1)
