"""The harness: who is timed when, what is said of the times, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import Report, Sample, interleave, publish, ratio, with_section


def test_contenders_take_turns_and_start_in_turn() -> None:
    calls: list[str] = []
    times = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=1
    )
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert {name: len(sample.seconds) for name, sample in times.items()} == {"a": 3, "b": 3}


def test_median_and_spread() -> None:
    sample = Sample((1.0, 2.0, 3.0, 4.0, 5.0))
    assert sample.median == 3.0
    assert sample.spread == pytest.approx(0.5)
    assert Sample((0.002,)).spread == 0.0
    assert str(Sample((0.002, 0.002))) == "2.0 ms ±0%"


def test_ratio_is_taken_within_rounds() -> None:
    slow, fast = Sample((2.0, 20.0, 4.0)), Sample((1.0, 10.0, 1.0))
    assert ratio(slow, fast) == 2.0


def test_report_is_written_as_markdown_and_json(tmp_path: Path) -> None:
    report = Report("speed", "Speed", ["model", "time"], remarks=["A remark."])
    report.add("U-Net", Sample((0.5,)))
    report.write(tmp_path)
    text = (tmp_path / "speed.md").read_text()
    assert text.startswith("## Speed\n\nA remark.\n\n| model | time |\n| --- | --- |\n")
    assert "| U-Net | 500.0 ms ±0% |" in text
    record = json.loads((tmp_path / "speed.json").read_text())
    assert record["rows"] == [["U-Net", "500.0 ms ±0%"]]
    assert record["environment"]["torch"]


def test_sections_are_replaced_between_their_marks(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "results"
    folder.mkdir()
    page.write_text(
        "# Page\n\n<!-- begin one -->\nold\n<!-- end one -->\n\nBy hand.\n\n"
        "<!-- begin two -->\nkept\n<!-- end two -->\n"
    )
    (folder / "one.md").write_text("## One\n\nnew\n")
    (folder / "three.md").write_text("## Three\n")
    publish(folder, page)
    publish(folder, page)
    assert page.read_text() == (
        "# Page\n\n<!-- begin one -->\n## One\n\nnew\n<!-- end one -->\n\nBy hand.\n\n"
        "<!-- begin two -->\nkept\n<!-- end two -->\n\n"
        "<!-- begin three -->\n## Three\n<!-- end three -->\n"
    )


def test_a_section_without_an_end_takes_nothing_with_it() -> None:
    with pytest.raises(SystemExit, match="begin one --> without <!-- end one"):
        with_section("<!-- begin one -->\nold\n\nBy hand.\n", "one", "new")


def test_nothing_to_publish(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make bench"):
        publish(tmp_path, tmp_path / "page.md")
