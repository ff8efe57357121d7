"""The building blocks of V-schedules: from the shortest, which keeps least, to those that never wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fxpipe.schedules.v_pattern import PERIOD, Block

_STEEP = (1, 2, 3, 4)
"""Slots from a rank to the next, on the way down or up."""

_MORE = 0.4
"""What a rank keeps for a moment beyond what a block says, at least."""


@dataclass(frozen=True)
class Found:
    """A block.

    Attributes:
        block: its slots.
        kept: micro-batches of a whole rank that the fullest rank keeps, without what start and end add.
        length: slots from the first to the last.
    """

    block: Block
    kept: float
    length: int


def blocks(ranks: int) -> Iterator[Found]:
    """Every block whose ways down and up are straight (Qi et al., arXiv 2405.15362).

    ::

        rank 0   F . . . . . . f I . . . . . . i        F  chunk 0 on the way down     slope a
        rank 1   . F . . . . f . . I . . . . i .        f  chunk 1 on the way up             b
        rank 2   . . F . . f . . . . I . . i . .        I  backward of chunk 1, down         c
        rank 3   . . . F f . . . . . . I i . . .        i  backward of chunk 0, up           d

    A rank's four slots differ modulo the period, so that the blocks of all micro-batches fit into each
    other. V-Min is a block of slopes 1 1 1 1, V-Half one of 2 1 2 1.

    Args:
        ranks: number of ranks.
    """
    gaps = range(1, PERIOD + 1)
    for a, b, c, d in product(_STEEP, repeat=4):
        for first, second, third in product(gaps, repeat=3):
            up = a * (ranks - 1) + first
            back = up + b * (ranks - 1) + second
            home = back + c * (ranks - 1) + third
            block = [
                (a * r, up + b * (ranks - 1 - r), back + c * r, home + d * (ranks - 1 - r))
                for r in range(ranks)
            ]
            if all(len({slot % PERIOD for slot in slots}) == 4 for slots in block):
                # from each forward to its weight half, which comes right after the input half
                lives = (slots[3] - slots[0] + slots[2] - slots[1] + 2 for slots in block)
                yield Found(block, max(lives) / (2 * PERIOD), block[0][3])


def promising(ranks: int, room: float, count: int) -> list[Found]:
    """The blocks to try first where a rank has room for so many micro-batches.

    Those that use the room come first, the shorter before the longer: they lose less at start and end.

    Args:
        ranks: number of ranks.
        room: micro-batches of a whole rank.
        count: how many blocks.
    """
    fitting = [found for found in blocks(ranks) if found.kept <= room - _MORE]
    fitting.sort(key=lambda found: (-(found.kept // 0.5), found.length))
    return fitting[:count]
