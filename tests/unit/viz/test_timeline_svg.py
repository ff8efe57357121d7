from __future__ import annotations

import xml.etree.ElementTree as ET

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.insert import with_updates
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
        if rect.get("fill") == "#f0f2f5" and rect.get("height") == "26"
    ]
    assert len(lanes) == 3
    assert abs(lanes[0] / lanes[2] - one.makespan / two.makespan) < 1e-3


def test_later_stages_of_a_rank_are_darker() -> None:
    text = timeline_svg(_step(2, 1))
    fills = {rect.get("fill") for rect in ET.fromstring(text).iterfind("s:rect", NAMESPACE)}
    assert {"#b6d2f5", "#7aabe6"} <= fills


def test_an_empty_timeline_draws() -> None:
    assert "<svg" in timeline_svg(Timeline((), "run"))


def _words(text: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(text).iterfind("s:g/s:text", NAMESPACE)]


def test_boxes_have_names_or_numbers_but_not_both() -> None:
    assert set(_words(timeline_svg(_step(3, 3)))) >= {"F0", "B3"}
    assert set(_words(timeline_svg(_step(3, 3), width=260))) == {"0", "1", "2", "3"}
    assert "2F0" in _words(timeline_svg(_step(4, 2), width=1000))


def test_there_is_room_for_the_numbers_of_many_micro_batches() -> None:
    programs = lower(one_f_one_b(8, 8, 32), linear(8))
    words = _words(timeline_svg(simulate(programs, [StageCost(1, 2)] * 8)))
    assert len(words) == 2 * 8 * 32
    assert "31" in words


def test_without_tips_the_file_is_smaller_and_shows_the_same() -> None:
    step = _step(4, 4)
    full, small = timeline_svg(step), timeline_svg(step, tips=False)
    assert _tips(small) == []
    assert _words(small) == _words(full)
    assert len(small) < 0.7 * len(full)
    moves = [
        path.get("d", "").count("M") for path in ET.fromstring(small).iterfind("s:path", NAMESPACE)
    ]
    assert sum(moves) == 4 * 4 * 2


def test_a_clock_writes_the_times() -> None:
    text = timeline_svg(_step(3, 3), clock="{:g} u".format)
    assert ">18 u, bubble 33.3%<" in text
    assert ">10 u<" in text
    assert "1F0: 1 u, from 1 u" in _tips(text)


def test_updates_that_take_time_are_boxes() -> None:
    schedule = with_updates(one_f_one_b(2, 2, 1))
    step = simulate(lower(schedule, linear(2)), [StageCost(1, 2, update=1)] * 2)
    text = timeline_svg(step)
    assert "1U: 1 s, from 4 s" in _tips(text)
    assert "U" in _words(text)
    assert ">update<" in text
    assert ">update<" not in timeline_svg(_step(2, 2))
