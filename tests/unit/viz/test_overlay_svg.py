from __future__ import annotations

import xml.etree.ElementTree as ET

from fxpipe.viz.overlay_svg import overlay_svg
from tests.unit.simulator.rows import timeline_of

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}
PREDICTED = timeline_of("0F0@0-1 0B0@4-6", "1F0@1-2 1B0@2-4", source="simulate")
MEASURED = timeline_of("0F0@10-12 0B0@16-18", "1F0@13-14 1B0@14-16")


def test_a_ranks_prediction_is_right_under_it_on_the_same_scale() -> None:
    root = ET.fromstring(overlay_svg(MEASURED, PREDICTED))
    lanes = [r for r in root.iterfind("s:rect[@x]", NAMESPACE) if r.get("fill") == "#f0f2f5"][:4]
    assert len({lane.get("x") for lane in lanes}) == 1
    tops = [float(lane.get("y", 0)) for lane in lanes]
    assert tops == sorted(tops)
    ends = [top + float(lane.get("height", 0)) for top, lane in zip(tops, lanes, strict=True)]
    assert tops[1] - ends[0] == tops[3] - ends[2] < tops[2] - ends[1]
    widths = [float(lane.get("width", 0)) for lane in lanes]
    assert [round(w / widths[0], 4) for w in widths] == [1.0, 0.75, 1.0, 0.75]


def test_both_start_at_the_left_and_name_what_they_run() -> None:
    root = ET.fromstring(overlay_svg(MEASURED, PREDICTED))
    tips = [t.text for t in root.iterfind(".//s:title", NAMESPACE)]
    assert "0F0: 2 s, from 0 s" in tips
    assert "0F0: 1 s, from 0 s" in tips
    assert len(tips) == 8


def test_steps_bubbles_and_busy_shares_are_told() -> None:
    text = overlay_svg(MEASURED, PREDICTED)
    assert ">8 s, bubble 56.2%<" in text
    assert ">6 s, bubble 50.0%<" in text
    assert text.count(">50%<") == 3
    assert text.count(">38%<") == 1


def test_a_rank_that_ran_nothing_has_an_empty_lane() -> None:
    assert overlay_svg(timeline_of("0F0@0-1"), PREDICTED).count(">rank ") == 2
