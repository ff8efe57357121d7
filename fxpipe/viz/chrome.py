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
    for rank in range(max(one.num_ranks for _, one in shown)):
        events.append(_name("process_name", rank, 0, f"rank {rank}"))
        events.append({**_name("process_sort_index", rank, 0, ""), "args": {"sort_index": rank}})
        for at, (title, one) in enumerate(shown):
            events += _track(rank, 2 * at, title or "compute")
            if any(s.rank == rank and isinstance(s.action, Transfer) for s in one.spans):
                events += _track(rank, 2 * at + 1, f"{title} transfers".strip())
    for at, (_, one) in enumerate(shown):
        first = min((span.start for span in one.spans), default=0.0)
        events += [_event(span, first, 2 * at) for span in one.spans]
    facts = {"source": timeline.source, "bubble": timeline.bubble}
    if predicted is not None:
        facts["predicted bubble"] = predicted.bubble
    body = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(body, ensure_ascii=False)


def _track(rank: int, thread: int, name: str) -> list[dict[str, Any]]:
    order = {**_name("thread_sort_index", rank, thread, ""), "args": {"sort_index": thread}}
    return [_name("thread_name", rank, thread, name), order]


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _event(span: Span, first: float, thread: int) -> dict[str, Any]:
    action = span.action
    event: dict[str, Any] = {
        "ph": "X",
        "name": str(action),
        "cat": type(action).__name__.lower(),
        "pid": span.rank,
        "tid": thread + isinstance(action, Transfer),
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
