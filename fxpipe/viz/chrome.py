"""Timelines in the trace event format that chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

import json
from typing import Any

from fxpipe.ir.action import Compute, Transfer, Update
from fxpipe.ir.timeline import Span, Timeline

_COLOURS = {
    "F": "rail_response",
    "B": "rail_animation",
    "I": "rail_load",
    "W": "rail_idle",
    "R": "generic_work",
}
"""Reserved colour names of the format."""


def chrome_trace(timeline: Timeline, predicted: Timeline | None = None) -> str:
    """The timeline as trace event JSON, in microseconds: a process per rank, transfers apart.

    What stands on one track must not overlap, in this format: transfers that do get more tracks.

    Args:
        timeline: predicted or measured.
        predicted: what was expected of a measured one: tracks of their own, under those of each rank.
    """
    shown = (
        [("", timeline)]
        if predicted is None
        else [("measured", timeline), ("predicted", predicted)]
    )
    events: list[dict[str, Any]] = []
    ranks = range(max(one.num_ranks for _, one in shown))
    for rank in ranks:
        events.append(_name("process_name", rank, 0, f"rank {rank}"))
        events.append({**_name("process_sort_index", rank, 0, ""), "args": {"sort_index": rank}})
    tracks = [_tracks(one, at, len(shown)) for at, (_, one) in enumerate(shown)]
    for at, (title, one) in enumerate(shown):
        for rank in ranks:
            events += _track(rank, 2 * at, title or "compute", 2 * at)
            used = {t for s, t in zip(one.spans, tracks[at], strict=True) if s.rank == rank}
            for number, track in enumerate(sorted(used - {2 * at}), start=1):
                name = f"{title} transfers".strip() + (f" {number}" if number > 1 else "")
                events += _track(rank, track, name, 2 * at + 1)
    for at, (_, one) in enumerate(shown):
        first = min((span.start for span in one.spans), default=0.0)
        pairs = zip(one.spans, tracks[at], strict=True)
        events += [_event(span, first, track) for span, track in pairs]
    facts = {"source": timeline.source, "bubble": timeline.bubble}
    if predicted is not None:
        facts["predicted bubble"] = predicted.bubble
    body = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(body, ensure_ascii=False)


def _tracks(timeline: Timeline, at: int, shown: int) -> list[int]:
    """The track of every span, where timeline number `at` of so many is shown.

    The first two are those of computations and of transfers; the others, for transfers that overlap, are
    numbered after the first two of all timelines.
    """
    tracks = [2 * at] * len(timeline.spans)
    ends: dict[int, list[float]] = {}
    transfers = (n for n, span in enumerate(timeline.spans) if isinstance(span.action, Transfer))
    for number in sorted(transfers, key=lambda n: timeline.spans[n].start):
        span = timeline.spans[number]
        lanes = ends.setdefault(span.rank, [])
        lane = next((n for n, end in enumerate(lanes) if end <= span.start), len(lanes))
        lanes[lane : lane + 1] = [span.end]
        tracks[number] = 2 * at + 1 if lane == 0 else 2 * shown + shown * (lane - 1) + at
    return tracks


def _track(rank: int, thread: int, name: str, order: int) -> list[dict[str, Any]]:
    index = {**_name("thread_sort_index", rank, thread, ""), "args": {"sort_index": order}}
    return [_name("thread_name", rank, thread, name), index]


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _event(span: Span, first: float, thread: int) -> dict[str, Any]:
    action = span.action
    event: dict[str, Any] = {
        "ph": "X",
        "name": str(action),
        "cat": type(action).__name__.lower(),
        "pid": span.rank,
        "tid": thread,
        "ts": (span.start - first) * 1e6,
        "dur": span.duration * 1e6,
    }
    match action:
        case Compute():
            event["cname"] = _COLOURS[action.kind]
            event["args"] = {"stage": action.stage, "micro-batch": action.micro_batch}
        case Transfer():
            event["args"] = {
                "value": action.value,
                "from stage": action.source,
                "to stage": action.target,
                "micro-batch": action.micro_batch,
            }
        case Update():
            event["args"] = {"stage": action.stage}
    return event
