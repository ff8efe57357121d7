"""Timelines as a PNG, one row per rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import fxpipe

COLOURS = {"F": "#4c78a8", "B": "#f58518", "I": "#e45756", "W": "#72b7b2"}


def draw(timelines: Mapping[str, fxpipe.Timeline], path: Path) -> None:
    """Draw timelines below each other on one time axis.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(
        len(timelines), 1, sharex=True, squeeze=False, figsize=(11, 1.7 * len(timelines) + 0.6)
    )
    for axes, (title, timeline) in zip(rows[:, 0], timelines.items(), strict=True):
        _row(axes, timeline)
        axes.set_title(f"{title}: {timeline.makespan * 1e3:.0f} ms, bubble {timeline.bubble:.0%}")
        axes.set_yticks(range(timeline.num_ranks), [f"rank {r}" for r in range(timeline.num_ranks)])
        axes.invert_yaxis()
    rows[-1, 0].set_xlabel("milliseconds")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _row(axes: object, timeline: fxpipe.Timeline) -> None:
    begin = min(span.start for span in timeline.spans)
    for rank in range(timeline.num_ranks):
        for span in timeline.compute_spans(rank):
            left, width = (span.start - begin) * 1e3, span.duration * 1e3
            kind, micro_batch = span.action.kind, span.action.micro_batch
            axes.barh(rank, width, left=left, color=COLOURS[kind], edgecolor="white", height=0.8)
            axes.text(left + width / 2, rank, micro_batch, ha="center", va="center", fontsize=8)
