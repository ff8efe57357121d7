from __future__ import annotations

import math
from fractions import Fraction

import torch

from fxpipe.ir.numbers import is_real, is_whole


def test_numbers_by_their_types() -> None:
    assert all(map(is_whole, (0, -3, 10**30)))
    assert not any(map(is_whole, (1.0, "1", None, True, Fraction(1))))
    assert all(map(is_real, (0, 1.5, math.inf, Fraction(1, 3))))
    assert not any(map(is_real, ("1", None, False, 1j, torch.ones(()))))
