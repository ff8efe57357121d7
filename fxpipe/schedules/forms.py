"""What is known of the schedules with names: which counts they are made for, what ranks keep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.rounds import Rounds

Peak: TypeAlias = Callable[[int, int, int, int], float | None]
"""(p ranks, v stages per rank, m micro-batches, rank) → activations of all stages of the rank."""


@dataclass(frozen=True, slots=True)
class Form:
    """What is known of a schedule.

    Attributes:
        stages_per_rank: that it is made for; it takes others, too.
        best: the numbers it is at its best with; it takes others, too.
        peak: the activations that a rank keeps at most, those of all its stages for one micro-batch
            being one (input halves release nothing); None where no closed form holds.
        formula: `peak` as text, with p, v, m and the rank r.
        is_bound: whether a rank may keep less.
        needs_even_ranks: whether it is refused for an odd number of ranks.
    """

    stages_per_rank: int
    best: str
    peak: Peak
    formula: str
    is_bound: bool = False
    needs_even_ranks: bool = False


def summary(name: str) -> str:
    """What a schedule with a name is, and its paper: the first line of its module."""
    text = sys.modules[SCHEDULES[name].__module__].__doc__ or name
    return text.splitlines()[0].rstrip(".")


def _one_f_one_b(p: int, v: int, m: int, rank: int) -> float | None:
    return min(p - rank, m) if v == 1 else None


def _eager(p: int, v: int, m: int, rank: int) -> float | None:
    return min(2 * (p - rank) - 1, m) if v == 1 else None


def _interleaved(p: int, v: int, m: int, rank: int) -> float | None:
    size = Rounds.of(p * v, p, m).size
    if m % size:
        return None
    return min((v - 1) * size + 2 * (p - 1 - rank) + 1, m * v) / v


def _zb_h1(p: int, v: int, m: int, rank: int) -> float | None:
    return p if v == 1 and m >= p else None


def _zb_h2(p: int, v: int, m: int, rank: int) -> float | None:
    return 2 * p - 1 if v == 1 and m >= 2 * p - 1 else None


def _interleaved_zb(p: int, v: int, m: int, rank: int) -> float | None:
    return p if m % p == 0 and m >= 2 * p else None


def _zb_v(p: int, v: int, m: int, rank: int) -> float | None:
    return p if v == 2 and m >= 2 * p - 1 else None


def _v_half(p: int, v: int, m: int, rank: int) -> float | None:
    return (p + 2) // 2 if v == 2 else None


def _v_min(p: int, v: int, m: int, rank: int) -> float | None:
    return (p + 4) // 3 if v == 2 else None


def _dualpipe_v(p: int, v: int, m: int, rank: int) -> float | None:
    return p + 0.5 if v == 2 and m >= 2 * p else None


def _dualpipe(p: int, v: int, m: int, rank: int) -> float | None:
    return p + 1 if v == 1 and m >= 2 * p and m % 2 == 0 else None


def _chimera(p: int, v: int, m: int, rank: int) -> float | None:
    return p // 2 + 1 + min(rank, p - 1 - rank) if v == 1 and m % p == 0 else None


FORMS: Final[Mapping[str, Form]] = {
    "gpipe": Form(1, "", lambda p, v, m, rank: m, "m"),
    "1f1b": Form(1, "m >= p", _one_f_one_b, "min(p - r, m)"),
    "eager-1f1b": Form(1, "m >= 2 p", _eager, "min(2 (p - r) - 1, m)"),
    "interleaved-1f1b": Form(
        2, "p divides m", _interleaved, "min((v - 1) p + 2 (p - 1 - r) + 1, m v) / v"
    ),
    "looped-bfs": Form(2, "m >= p", lambda p, v, m, rank: m, "m"),
    "zb-h1": Form(1, "m >= p", _zb_h1, "p"),
    "zb-h2": Form(1, "m >= 2 p - 1", _zb_h2, "2 p - 1"),
    "zb-v": Form(2, "m >= 2 p - 1", _zb_v, "p"),
    "v-half": Form(2, "m >= 2 p", _v_half, "(p + 2) // 2", is_bound=True),
    "v-min": Form(2, "m >= 2 p", _v_min, "(p + 4) // 3", is_bound=True),
    "interleaved-zb": Form(2, "p divides m", _interleaved_zb, "p"),
    "dualpipe-v": Form(2, "m >= 2 p", _dualpipe_v, "p + 1/2", is_bound=True),
    "dualpipe": Form(1, "m even and >= 2 p", _dualpipe, "p + 1", needs_even_ranks=True),
    "chimera": Form(
        1, "p divides m", _chimera, "p / 2 + 1 + min(r, p - 1 - r)", needs_even_ranks=True
    ),
    "hanayo": Form(
        2, "p divides m", lambda p, v, m, rank: p if v % 2 == 0 else None, "p", is_bound=True
    ),
    "forward": Form(1, "", lambda p, v, m, rank: 0, "0"),
}
"""Schedule → what is known of it."""
