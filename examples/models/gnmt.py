"""An LSTM encoder–decoder with attention in the manner of GNMT.

Wu et al. 2016, "Google's neural machine translation system". The encoder's first layer reads both
ways; from its third layer on (the decoder's: second) layers have residuals. The decoder's first layer
asks the attention, whose context every other layer of the decoder reads: it passes over them all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """A bidirectional LSTM layer, then layers in one direction."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.both = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        inputs = [2 * width] + [width] * (layers - 2)
        self.layers = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in inputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor) -> Tensor:
        x, _ = self.both(self.dropout(self.words(source)))
        for layer in self.layers:
            before = x
            x, _ = layer(self.dropout(x))
            if before.shape == x.shape:
                x = x + before
        return x


class Attention(nn.Module):
    """Additive attention (Bahdanau et al. 2015) over the encoder's states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Contexts [batch, target, width]; `mask` [batch, source] is true where there is a word."""
        sums = self.query(queries)[:, :, None] + self.key(states)[:, None]
        scores = self.score(sums.tanh()).squeeze(-1)
        weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
        return weights @ states


class Decoder(nn.Module):
    """An LSTM layer that asks the attention, then layers that read its context."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = Attention(width)
        self.layers = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1)
        )
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(width, vocabulary)

    def forward(self, target: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        x, _ = self.first(self.dropout(self.words(target)))
        context = self.attention(x, states, mask)
        for layer in self.layers:
            y, _ = layer(self.dropout(torch.cat([x, context], dim=2)))
            x = x + y
        return self.scores(x)


class GNMT(nn.Module):
    """Scores [batch, target, vocabulary] of the words that follow each target word.

    Args:
        vocabulary: number of words, of both languages.
        width: size of word vectors and states.
        layers: LSTM layers of the encoder, and of the decoder (at least two).
        dropout: probability.
    """

    def __init__(
        self, vocabulary: int, width: int = 1024, layers: int = 8, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, width, layers, dropout)
        self.decoder = Decoder(vocabulary, width, layers, dropout)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Source and target words [batch, length]; `lengths` [batch] of the source count."""
        mask = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        return self.decoder(target, self.encoder(source), mask)
