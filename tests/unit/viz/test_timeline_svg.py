from __future__ import annotations

import xml.etree.ElementTree as ET

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.simulator.engine import simulate
from fxpipe.viz.timeline_svg import timeline_svg

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def _step(stages: int, ranks: int, latency: float = 0.0) -> Timeline:
    programs = lower(one_f_one_b(stages, ranks, 4), linear(stages))
    return simulate(programs, [StageCost(1, 2)] * stages, Cluster(ranks, latency))


def _tips(text: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(text).iterfind(".//s:title", NAMESPACE)]


def test_every_computation_is_a_box_with_its_times() -> None:
    tips = _tips(timeline_svg(_step(3, 3)))
    assert len(tips) == 3 * 4 * 2
    assert "1F0: 1 s, from 1 s" in tips
    assert "2B3: 2 s, from 12 s" in tips


def test_sends_are_drawn_and_waits_are_not() -> None:
    tips = _tips(timeline_svg(_step(3, 3, latency=0.5)))
    sends = [tip for tip in tips if tip.startswith("send")]
    assert len(sends) == 4 * 2 * 2
    assert not [tip for tip in tips if tip.startswith("recv")]


def test_several_timelines_share_one_scale() -> None:
    one, two = _step(2, 2), _step(2, 1)
    text = timeline_svg(one, two, titles=("predicted", "measured"))
    assert ">predicted<" in text
    assert ">measured<" in text
    lanes = [
        float(rect.get("width", 0))
        for rect in ET.fromstring(text).iterfind("s:rect", NAMESPACE)
        if rect.get("fill") == "#f0f2f5" and rect.get("height") == "30.00"
    ]
    assert len(lanes) == 3
    assert abs(lanes[0] / lanes[2] - one.makespan / two.makespan) < 1e-3


def test_later_stages_of_a_rank_are_darker() -> None:
    text = timeline_svg(_step(2, 1))
    fills = {rect.get("fill") for rect in ET.fromstring(text).iterfind("s:rect", NAMESPACE)}
    assert {"#a7c7f0", "#8fabce"} <= fills


def test_an_empty_timeline_draws() -> None:
    assert "<svg" in timeline_svg(Timeline((), "run"))
