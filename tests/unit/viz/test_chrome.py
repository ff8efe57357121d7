from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from fxpipe.ir.action import Compute, Direction, Payload, Transfer, Update
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate
from fxpipe.viz.chrome import chrome_trace


def test_events_have_rank_thread_start_and_duration() -> None:
    send = Transfer(Direction.SEND, Payload.ACTIVATION, "x", 0, 1, 3)
    timeline = Timeline(
        (
            Span(0, Compute.from_text("0F3"), 1.0, 1.5),
            Span(0, send, 1.5, 1.75),
            Span(1, Update(1), 2.0, 2.5),
        ),
        "run",
    )
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    drawn = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in drawn] == [
        ("0F3", 0, 0, 0.0, 500_000.0),
        ("send[a:x:0→1]3", 0, 1, 500_000.0, 250_000.0),
        ("1U", 1, 0, 1_000_000.0, 500_000.0),
    ]
    assert drawn[0]["args"] == {"stage": 0, "micro-batch": 3}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 0): "compute", (0, 1): "transfers", (1, 0): "compute"}


def test_an_empty_timeline_has_no_events() -> None:
    assert json.loads(chrome_trace(Timeline((), "run")))["traceEvents"] == []


def test_measured_and_predicted_are_tracks_of_the_same_rank() -> None:
    action = Compute.from_text("0F0")
    send = Transfer(Direction.SEND, Payload.ACTIVATION, "x", 0, 1, 0)
    measured = Timeline((Span(0, action, 5.0, 6.0),), "run")
    predicted = Timeline((Span(0, action, 0.0, 2.0), Span(0, send, 2.0, 3.0)), "simulate")
    trace = json.loads(chrome_trace(measured, predicted))
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "measured", 2: "predicted", 3: "predicted transfers"}
    drawn = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [
        ("0F0", 0, 0.0, 1e6),
        ("0F0", 2, 0.0, 2e6),
        ("send[a:x:0→1]0", 3, 2e6, 1e6),
    ]
    assert trace["otherData"]["source"] == "run"


def _overlaps(events: list[dict[str, Any]]) -> list[str]:
    """Events that begin on a track before the one that stands there has ended."""
    tracks: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"], event["name"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    found = []
    for spans in tracks.values():
        spans.sort()
        found += [b[2] for a, b in pairwise(spans) if b[0] < a[1] - 1e-6]
    return found


@pytest.mark.parametrize("beside", [False, True])
def test_transfers_that_overlap_have_tracks_of_their_own(beside: bool) -> None:
    schedule = SCHEDULES["zb-v"](6, 3, 5)
    cluster = Cluster(3, latency=2.5)
    timeline = simulate(lower(schedule, linear(6)), [StageCost(1, 2, 1)] * 6, cluster)
    trace = json.loads(chrome_trace(timeline, timeline if beside else None))["traceEvents"]
    drawn = [event for event in trace if event["ph"] == "X"]
    assert len(drawn) == (1 + beside) * len(timeline.spans)
    assert _overlaps(drawn) == []
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in drawn} == set(names)
    assert len(names) == len({(rank, name) for (rank, _), name in names.items()})
    title = "predicted transfers" if beside else "transfers"
    assert {title, f"{title} 2", f"{title} 3"} <= set(names.values())
