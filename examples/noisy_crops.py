"""Photographs that scikit-image ships, with noise on them: data for denoising, without a download."""

from __future__ import annotations

from dataclasses import dataclass

import skimage.data
import torch
from torch import Tensor

TRAIN = ("astronaut", "coffee", "chelsea", "brick", "grass", "coins")
HELD_OUT = "camera"
SIGMA = 0.2


def photograph(name: str) -> Tensor:
    """A grey image [height, width] with values from 0 to 1."""
    pixels = torch.as_tensor(getattr(skimage.data, name)().copy()).float() / 255
    return pixels.mean(-1) if pixels.ndim == 3 else pixels


@dataclass
class NoisyCrops:
    """Random crops of the training photographs, always the same ones for the same seed."""

    size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        self.photographs = [photograph(name) for name in TRAIN]
        self.generator = torch.Generator().manual_seed(self.seed)

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Noisy crops [rows, 1, size, size], and their noise in units of `SIGMA`."""
        clean = torch.stack([self._crop() for _ in range(rows)])[:, None]
        noise = torch.randn(clean.shape, generator=self.generator)
        return clean + SIGMA * noise, noise

    def _crop(self) -> Tensor:
        picture = self.photographs[self._below(len(self.photographs))]
        top = self._below(picture.shape[0] - self.size + 1)
        left = self._below(picture.shape[1] - self.size + 1)
        return picture[top : top + self.size, left : left + self.size]

    def _below(self, limit: int) -> int:
        return int(torch.randint(limit, (), generator=self.generator))


def held_out(size: int = 128) -> tuple[Tensor, Tensor]:
    """A photograph that is not trained on, in tiles [tiles, 1, size, size]: noisy and clean."""
    clean = photograph(HELD_OUT).unfold(0, size, size).unfold(1, size, size)
    clean = clean.reshape(-1, 1, size, size)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    return clean + SIGMA * noise, clean


def psnr(picture: Tensor, clean: Tensor) -> float:
    """Peak signal-to-noise ratio in dB: higher is cleaner."""
    return -10 * float((picture - clean).square().mean().log10())
