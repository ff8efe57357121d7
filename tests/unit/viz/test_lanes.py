from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from fxpipe.ir.action import Compute, Direction, Payload, Transfer
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.viz.lanes import LEFT, Lanes, Ruler, draw_axis, fitting_width, is_send
from fxpipe.viz.svg import Sheet
from tests.unit.simulator.rows import timeline_of

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}
RULER = Ruler(100.0, "{:g}".format)


def test_a_lane_begins_with_the_step() -> None:
    sheet = Sheet()
    Lanes(timeline_of("0F0@7-8", "1F0@8.5-9"), 20.0, RULER).draw(sheet, 1, 10.0)
    ground, box = ET.fromstring(sheet.svg(500, 50)).findall("s:rect[@x]", NAMESPACE)
    assert (ground.get("x"), ground.get("width")) == (f"{LEFT:g}", "200")
    assert (box.get("x"), box.get("width")) == (f"{LEFT + 150:g}", "50")
    assert (box.get("y"), box.get("height")) == ("10", "20")


def test_a_picture_is_as_wide_as_its_numbers_need_within_limits() -> None:
    few = timeline_of("0F0@0-1 0B0@1-3")
    many = timeline_of(" ".join(f"0F{m}@{m}-{m + 1}" for m in range(50)))
    most = timeline_of(" ".join(f"0F{m}@{m}-{m + 1}" for m in range(500)))
    assert fitting_width([few]) < fitting_width([many]) < fitting_width([few, most])
    assert fitting_width([many, few]) == fitting_width([many])
    assert fitting_width([most]) < 2400
    assert fitting_width([]) == fitting_width([few])


@pytest.mark.parametrize("makespan", [0.003, 1.0, 7.0, 33.0, 999.0])
def test_an_axis_has_a_few_round_numbers(makespan: float) -> None:
    sheet = Sheet()
    draw_axis(sheet, makespan, 0.0, Ruler(800 / makespan, "{:g}".format))
    texts = [t.text or "" for t in ET.fromstring(sheet.svg(900, 20)).iterfind("s:text", NAMESPACE)]
    assert 4 <= len(texts) <= 11
    assert texts[0] == "0"
    assert float(texts[1]) / 10 ** int(f"{float(texts[1]):e}"[-3:]) == pytest.approx(
        float(f"{float(texts[1]):e}"[0])
    )


def test_only_sends_are_on_a_link() -> None:
    send = Transfer(Direction.SEND, Payload.GRADIENT, "x", 1, 0, 0)
    receive = Transfer(Direction.RECV, Payload.GRADIENT, "x", 1, 0, 0)
    assert is_send(Span(0, send, 0.0, 1.0))
    assert not is_send(Span(0, receive, 0.0, 1.0))
    assert not is_send(Span(0, Compute.from_text("0F0"), 0.0, 1.0))


def test_a_send_is_a_bar_under_its_lane() -> None:
    send = Transfer(Direction.SEND, Payload.ACTIVATION, "x", 0, 1, 0)
    timeline = Timeline((*timeline_of("0F0@0-1").spans, Span(0, send, 1.0, 2.0)), "simulate")
    sheet = Sheet()
    Lanes(timeline, 20.0, RULER).draw(sheet, 0, 10.0)
    *_, bar = ET.fromstring(sheet.svg(500, 50)).findall("s:rect", NAMESPACE)
    assert (bar.get("y"), bar.get("width")) == ("31", "100")
