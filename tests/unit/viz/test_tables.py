from __future__ import annotations

from fxpipe.viz.tables import table


def test_columns_are_as_wide_as_their_cells() -> None:
    text = table(("name", "size"), [("a", "1"), ("  b", "200000")], right=("size",))
    assert text.splitlines() == [
        "  name    size",
        "  ----  ------",
        "  a          1",
        "    b   200000",
    ]


def test_the_widest_column_is_wrapped() -> None:
    rows = [("a", "one two three four five six"), ("  b", "x")]
    lines = table(("name", "words"), rows, width=24).splitlines()
    assert max(map(len, lines)) <= 24
    assert lines[2:] == [
        "  a     one two three",
        "          four five six",
        "    b   x",
    ]


def test_indented_cells_stay_indented_when_wrapped() -> None:
    lines = table(("words",), [("  one two three four",)], width=15, indent="").splitlines()
    assert lines[2:] == ["  one two three", "    four"]


def test_words_longer_than_a_column_are_broken() -> None:
    lines = table(("word",), [("x" * 25,)], width=10, indent="").splitlines()
    assert "".join(lines[2:]).replace(" ", "") == "x" * 25
    assert max(map(len, lines)) <= 10


def test_no_rows() -> None:
    assert table(("a", "b"), []) == "  a  b\n  -  -"
