"""A sequence tagger: a bidirectional LSTM over packed sequences of different lengths."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    """Scores of tags for each word.

    Args:
        vocabulary: number of words.
        tags: number of tags.
        width: size of word vectors, and of the LSTM in each direction.
        layers: LSTM layers.
        dropout: probability, between layers and before the scores.
    """

    def __init__(
        self, vocabulary: int, tags: int, width: int = 128, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(
            width, width, layers, batch_first=True, bidirectional=True, dropout=dropout
        )
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(2 * width, tags)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Scores [batch, length, tags] of words [batch, length], of which `lengths` [batch] count."""
        packed = pack_padded_sequence(
            self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = self.lstm(packed)
        padded, _ = pad_packed_sequence(states, batch_first=True, total_length=words.size(1))
        return self.scores(self.dropout(padded))
