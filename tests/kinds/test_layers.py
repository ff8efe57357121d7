"""Recurrence, packed sequences, attention, routing, sparse gradients, convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from tests.cases.blocks import WIDTH, WORDS, Block, words
from tests.exact import Batch, Kind, vectors
from tests.kinds.check import assert_works, each


class Recurrent(nn.Module):
    """An LSTM and a GRU in both directions, with states handed from one to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.down = nn.LSTM(WIDTH, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.up = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.plain = nn.RNN(WIDTH, WIDTH, batch_first=True, nonlinearity="relu")
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x, (state, _) = self.down(self.embed(ids))
        y, last = self.up(x, torch.cat((state[-1], state[-2]), -1)[None])
        z, _ = self.plain(y, last)
        return self.head(z), last


class Cells(nn.Module):
    """A loop over time with cells, and teacher forcing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(WORDS, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.second, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        h = c = s = torch.zeros(ids.shape[0], WIDTH)
        made = []
        for token in ids.unbind(1):
            h, c = self.cell(self.embed(token), (h, c))
            s = self.second(h, s)
            made.append(self.head(s))
        return torch.stack(made, dim=1)


class Packed(nn.Module):
    """Sequences of unequal length, packed for the LSTM and padded again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.again = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(
            self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        packed, (state, _) = self.rnn(packed)
        packed = PackedSequence(torch.tanh(packed.data), *packed[1:])
        packed, _ = self.again(packed)
        padded, found = pad_packed_sequence(packed, batch_first=True, total_length=ids.shape[1])
        return self.head(padded), state[-1] * found[:, None].float()


def unequal(rows: int) -> Batch:
    lengths = torch.arange(rows) % 5 + 1
    lengths[0] = 5
    return (torch.randint(1, WORDS, (rows, 5)), lengths), {}


class Attends(nn.Module):
    """Attention in every form that torch has it."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, dropout=drop)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 16, drop, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, 2, 16, drop, batch_first=True)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x, padding = self.embed(ids), ids == 0
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        y, weights = self.attention(x, x, x, key_padding_mask=padding, average_attn_weights=False)
        y = self.encoder(x + y, src_mask=mask)
        y = self.decoder(y, x, tgt_mask=mask)
        q, k, v = self.project(y).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return made.transpose(1, 2).flatten(2), weights


class Mixture(nn.Module):
    """The best two experts for each row, gathered, run and added back: sizes depend on the data."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(WIDTH, 4)
            self.experts = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = torch.topk(self.router(x).softmax(-1), 2)
            made = torch.zeros_like(x)
            for n, expert in enumerate(self.experts):
                rows, place = torch.where(chosen == n)
                if rows.numel() == 0:
                    continue
                made.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
            return made

    def __init__(self) -> None:
        super().__init__()
        self.one, self.mixture, self.last = Block(), self.Layer(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.mixture(self.one(x)))


class DenseMixture(nn.Module):
    """Every expert for every row, most of them with weight zero: nothing depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.weights = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 3)
        self.last = Block()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(x)
        best = scores.topk(2, dim=-1)
        gates = torch.full_like(scores, float("-inf")).scatter(-1, best.indices, best.values)
        gates = gates.softmax(-1)
        made = torch.einsum("re,eio,ri->ro", gates, self.weights, x)
        used = F.one_hot(best.indices, 4).sum((0, 1)).float() / x.shape[0]
        return self.last(made), (used * scores.softmax(-1).mean(0)).sum()


class SparseGradients(nn.Module):
    """Embeddings whose gradients are sparse, and bags of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, sparse=True, padding_idx=0)
        self.bag = nn.EmbeddingBag(WORDS, WIDTH, mode="sum", sparse=True)
        self.one, self.two = Block(), Block()

    def forward(self, ids: Tensor) -> Tensor:
        return self.two(self.one(self.embed(ids).mean(1)) + self.bag(ids))


class Convolutions(nn.Module):
    """Convolutions, norms and poolings of several kinds; sizes worked out from the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding="same")
        self.norm, self.group = nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(2, 8)
        self.depth = nn.Conv2d(8, 8, 3, groups=8, padding=1, padding_mode="reflect")
        self.shuffle = nn.PixelShuffle(2)
        self.last = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm(self.stem(x)))
        y = F.max_pool2d(self.group(self.depth(y)), 2) + F.avg_pool2d(y, 2)
        y = self.shuffle(F.pad(y, (0, 1, 0, 1)))[..., : x.shape[-2], : x.shape[-1]]
        y = F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.last(y) + F.adaptive_avg_pool2d(x, 1)


class Pads(nn.Module):
    """A list of sequences made from the rows, padded to the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(WORDS, WIDTH), Block()

    def forward(self, ids: Tensor) -> Tensor:
        parts: list[Any] = [self.embed(part) for part in ids.split((3, 2), dim=1)]
        padded = pad_sequence([part.transpose(0, 1) for part in parts], batch_first=True)
        return self.last(padded.permute(2, 0, 1, 3).flatten(1, 2))


KINDS = {
    "recurrence": Kind(Recurrent, words()),
    "cells": Kind(Cells, words(3), tied=None),
    "packed sequences": Kind(Packed, unequal),
    "attention": Kind(Attends, words()),
    "a mixture": Kind(Mixture, vectors(WIDTH)),
    "a dense mixture": Kind(DenseMixture, vectors(WIDTH)),
    "sparse gradients": Kind(SparseGradients, words()),
    "convolutions": Kind(Convolutions, lambda rows: ((torch.randn(rows, 3, 6, 6),), {})),
    "padding": Kind(Pads, words()),
    "attention with dropout": Kind(lambda: Attends(0.2), words(), random=True),
}


@each(KINDS)
def test_layers_work(kind: Kind) -> None:
    assert_works(kind)
