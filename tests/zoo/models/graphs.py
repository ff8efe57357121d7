"""PyTorch Geometric: graph networks over one graph, which has no rows to cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Entry

FEATURES = 6


def graph(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A random directed graph of four nodes per row, with features and three edges per node."""
    g = torch.Generator().manual_seed(seed)
    nodes = 4 * rows
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=g)
    return (torch.randn(nodes, FEATURES, generator=g), edges), {}


def _gcn() -> nn.Module:
    from torch_geometric.nn import GCN

    return GCN(FEATURES, 8, num_layers=4, out_channels=3)


def _gat() -> nn.Module:
    from torch_geometric.nn import GAT

    return GAT(FEATURES, 8, num_layers=4, out_channels=3, heads=2)


def _gin() -> nn.Module:
    from torch_geometric.nn import GIN

    return GIN(FEATURES, 8, num_layers=4, out_channels=3)


ENTRIES = (
    Entry("PyG GCN", "PyTorch Geometric", _gcn, graph, batched=False),
    Entry("PyG GAT", "PyTorch Geometric", _gat, graph, batched=False),
    Entry("PyG GIN", "PyTorch Geometric", _gin, graph, batched=False),
)
