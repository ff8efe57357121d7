"""The demo's data: reproducible, without a download, and as noisy as said."""

from __future__ import annotations

import pytest
import torch

from examples.noisy_crops import SIGMA, NoisyCrops, held_out, psnr


def test_same_seed_same_crops() -> None:
    first, second = NoisyCrops(size=16, seed=3), NoisyCrops(size=16, seed=3)
    for _ in range(2):
        images, noise = first.batch(5)
        assert images.shape == noise.shape == (5, 1, 16, 16)
        assert torch.equal(images, second.batch(5)[0])
    clean = images - SIGMA * noise
    assert float(clean.min()) >= -1e-6
    assert float(clean.max()) <= 1 + 1e-6


def test_held_out_photograph_is_noisy() -> None:
    noisy, clean = held_out(128)
    assert noisy.shape == clean.shape == (16, 1, 128, 128)
    assert psnr(noisy, clean) == pytest.approx(13.98, abs=0.1)  # 20 log10(1 / 0.2)
