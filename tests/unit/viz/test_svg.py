from __future__ import annotations

import xml.etree.ElementTree as ET

from fxpipe.viz.svg import Sheet

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def test_a_sheet_is_one_document_with_its_shapes_in_order() -> None:
    sheet = Sheet()
    sheet.rect(1, 2, 3, 4, "#ff0000", tip="a < b")
    sheet.text(5, 6, "x & y", halo=True)
    sheet.line(0, 0, 1, 1, "#000000")
    root = ET.fromstring(sheet.svg(100, 50))
    assert root.find("s:rect[@x]", NAMESPACE).attrib == {  # type: ignore[union-attr]
        "x": "1", "y": "2", "width": "3", "height": "4", "fill": "#ff0000",
    }  # fmt: skip
    assert (root.get("width"), root.get("height")) == ("100", "50")
    tags = [child.tag.split("}")[1] for child in root]
    assert tags == ["defs", "rect", "rect", "text", "line"]
    assert root.findtext("s:rect/s:title", namespaces=NAMESPACE) == "a < b"
    assert root.findtext("s:text", namespaces=NAMESPACE) == "x & y"


def test_every_colour_of_arrow_has_one_head() -> None:
    sheet = Sheet()
    for colour in ("#111111", "#222222", "#111111"):
        sheet.arrow("M0,0 L1,1", colour, dashed=colour == "#222222")
    root = ET.fromstring(sheet.svg(10, 10))
    heads = [marker.get("id") for marker in root.iterfind(".//s:marker", NAMESPACE)]
    assert heads == ["head-111111", "head-222222"]
    used = [p.get("marker-end") for p in root.iterfind("s:path", NAMESPACE)]
    assert used == ["url(#head-111111)", "url(#head-222222)", "url(#head-111111)"]


def test_many_rectangles_are_one_shape_and_many_words_one_group() -> None:
    sheet = Sheet()
    sheet.tiles([(0, 1, 2.5, 3), (4.126, 5, 6, 7)], "#123456")
    sheet.words([(1, 2, "a"), (3, 4, "<")], size=9, colour="#654321")
    sheet.tiles([], "#000000")
    sheet.words([], size=9)
    root = ET.fromstring(sheet.svg(10, 10))
    (path,) = root.iterfind("s:path", NAMESPACE)
    assert path.get("d") == "M0 1h2.5v3h-2.5zM4.13 5h6v7h-6z"
    (group,) = root.iterfind("s:g", NAMESPACE)
    assert [(t.get("x"), t.get("y"), t.text) for t in group] == [("1", "2", "a"), ("3", "4", "<")]
    assert (group.get("font-size"), group.get("fill")) == ("9", "#654321")
