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


def chrome_trace(timeline: Timeline) -> str:
    """The timeline as trace event JSON, in microseconds: a process per rank, transfers apart."""
    first = min((span.start for span in timeline.spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank in range(timeline.num_ranks):
        events.append(_name("process_name", rank, 0, f"rank {rank}"))
        events.append({**_name("process_sort_index", rank, 0, ""), "args": {"sort_index": rank}})
        events.append(_name("thread_name", rank, 0, "compute"))
        if any(s.rank == rank and isinstance(s.action, Transfer) for s in timeline.spans):
            events.append(_name("thread_name", rank, 1, "transfers"))
    events += [_event(span, first) for span in timeline.spans]
    body = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"source": timeline.source, "bubble": timeline.bubble},
    }
    return json.dumps(body, ensure_ascii=False)


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _event(span: Span, first: float) -> dict[str, Any]:
    action = span.action
    event: dict[str, Any] = {
        "ph": "X",
        "name": str(action),
        "cat": type(action).__name__.lower(),
        "pid": span.rank,
        "tid": 1 if isinstance(action, Transfer) else 0,
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
