"""Writes docs/published.md: the tables of `benchmarks.published`, each value beside the simulator's."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.published import (
    CHIMERA,
    COLUMNS,
    DUALPIPE,
    FOUR_RANKS,
    MEASURED,
    RATIOS,
    UNEQUAL,
    UNLIKE,
    Measured,
    chimera,
    dualpipe,
    unequal,
    unlike,
)
from fxpipe.simulator.metrics import device_span_bubble

PAGE: Final = Path(__file__).parents[1] / "docs" / "published.md"


def page() -> str:
    """Markdown."""
    parts = [
        "# Published tables beside the simulator's",
        "Written by `python -m benchmarks.published_page`; `tests/unit/simulator/test_published.py` "
        "asserts every row. In each pair, the published or reference value stands first, the "
        "simulator's second. How a bubble is counted is said in [simulate](simulate.md).",
        *_equal_costs(),
        *_unequal_costs(),
        *_zero_bubble(),
        *_two_directions(),
    ]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _equal_costs() -> Iterator[str]:
    yield "## Equal costs, 4 ranks"
    yield (
        "F = I = W = 1 of a rank, free links. The step, the span of a rank from its first "
        "computation to its last, idle time as fraction of the step, and the most that rank 0 keeps, "
        "in activations of one micro-batch. The reference is torch's generators for the schedules "
        "that torch has, the authors' for the others."
    )
    yield _table(
        ("schedule", "v", "m", "step", "device span", "bubble", "kept on rank 0"), _four_ranks()
    )


def _four_ranks() -> Iterator[Sequence[object]]:
    for row in FOUR_RANKS:
        ours = row.simulated()
        yield (
            row.name,
            row.per_rank,
            row.micro_batches,
            _pair(row.makespan, ours.makespan, "g"),
            _pair(row.span, ours.span, "g"),
            _pair(row.bubble, ours.bubble, ".4f"),
            _pair(row.kept, ours.kept, "g"),
        )


def _unequal_costs() -> Iterator[str]:
    yield "## Costs that differ by kind"
    yield "F, I, W = 3, 4, 2 of a rank, 4 ranks; the device span, by the authors' generators."
    yield _table(
        ("schedule", "m", "device span"),
        ((name, m, _pair(span, unequal(name, m), "g")) for name, m, span in UNEQUAL),
    )
    yield "## Stages that differ"
    yield (
        "4 ranks, 6 micro-batches, F = (1, 2, 1.5, 1), I = (1, 2, 1.5, 1.25), W = (1, 1, 1, 0.5). The "
        "reference follows from the orders by hand."
    )
    yield _table(
        ("schedule", "step"), ((name, _pair(step, unlike(name), "g")) for name, step in UNLIKE)
    )


def _zero_bubble() -> Iterator[str]:
    yield "## Zero bubble: costs of GPT-like models"
    yield (
        "Bubbles of the device span, for the paper's costs in milliseconds (arXiv 2401.10241). The "
        "interleaved column has a micro-batch wait for a value that wraps around from the last rank "
        "to the first only if it is the first of its round; told so, the simulator agrees. If every "
        "one waits for its own value, the bubble is the last column's."
    )
    yield _table(
        ("model", "p", "m", *COLUMNS, "1F1B-I", "1F1B-I, all wait"), map(_bubbles, MEASURED)
    )
    yield "## Zero bubble: measured speed"
    yield (
        "ZB-2p over 1F1B, measured by the paper's authors, and simulated (without optimiser and "
        "launch gaps)."
    )
    yield _table(
        ("model", "p", "m", "ZB-2p over 1F1B"),
        (
            (row.model, row.ranks, row.micro_batches, _pair(measured, row.simulated_speed(), ".2f"))
            for row, measured in RATIOS
        ),
    )


def _bubbles(row: Measured) -> Sequence[object]:
    as_published, ours = map(row.simulated_interleaved, (True, False))
    return (
        *(row.model, row.ranks, row.micro_batches),
        *(_pair(bubble, row.simulated(at), ".4f") for at, bubble in enumerate(row.bubbles)),
        _pair(row.interleaved, device_span_bubble(as_published), ".4f"),
        f"{device_span_bubble(ours):.4f}",
    )


def _two_directions() -> Iterator[str]:
    yield "## Two directions"
    yield (
        "DualPipe and DualPipeV, slots of their official figures: of the step, and idle ones of every "
        "rank."
    )
    yield _table(("schedule", "ranks", "m", "step", "idle"), _dualpipe())
    yield "Chimera with as many micro-batches as ranks and F = B: the bubble by the paper's closed form."
    yield _table(("ranks", "bubble"), ((d, _pair(*chimera(d), ".4f")) for d in CHIMERA))


def _dualpipe() -> Iterator[Sequence[object]]:
    for name, stages, ranks, micro_batches, slots, idle in DUALPIPE:
        step, (waits,) = dualpipe(name, stages, ranks, micro_batches)
        yield name, ranks, micro_batches, _pair(slots, step, "g"), _pair(idle, waits, "g")


# -- text ----------------------------------------------------------------------------------------------


def _pair(published: float, simulated: float, form: str) -> str:
    return f"{published:{form}} / {simulated:{form}}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def _wrapped(text: str) -> str:
    """A paragraph in lines of moderate length; tables and titles as they are."""
    if text.startswith(("|", "#")):
        return text
    return textwrap.fill(text, 104, break_on_hyphens=False, break_long_words=False)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
