"""The peer: torchgpipe's way to cut a chain, block partition (Bárány and Grinberg, arXiv 1308.2452).

Written from the paper's description and the peer's documented behaviour: costs are scaled to [0, 1],
the start is blocks of equal count (the last takes the rest), and elements are shifted from a heaviest
block towards a lightest until the sums differ by at most one.
"""

from __future__ import annotations

from collections.abc import Sequence


def block_partition(costs: Sequence[float], blocks: int) -> list[int]:
    """How many elements each block holds."""
    low, high = min(costs), max(costs)
    scaled = [(cost - low) / (high - low) if high > low else 0.0 for cost in costs]
    each = len(costs) // blocks
    ends = [each * (block + 1) for block in range(blocks - 1)] + [len(costs)]
    heaviest = None
    while True:
        sums = _sums(scaled, ends)
        if heaviest is None:
            heaviest = max(range(blocks), key=lambda block: sums[block])
        if sums[heaviest] <= min(sums) + 1:
            return [end - start for start, end in zip([0, *ends], ends, strict=False)]
        lightest = min(
            (block for block in range(blocks) if sums[block] == min(sums)),
            key=lambda block: abs(block - heaviest),
        )
        if lightest < heaviest:
            giver = lightest + 1
            ends[lightest] += 1
        else:
            giver = lightest - 1
            ends[giver] -= 1
        if giver == heaviest:
            heaviest = None


def _sums(costs: Sequence[float], ends: Sequence[int]) -> list[float]:
    return [sum(costs[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def heaviest_block(costs: Sequence[float], sizes: Sequence[int]) -> float:
    """The largest sum of a block."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return max(_sums(costs, ends))
