"""The pictures of the docs are what the code draws today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from fxpipe.schedules.registry import SCHEDULES

DOCS = Path(__file__).parents[2] / "docs"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "images" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gallery_is_current() -> None:
    drawn = dict(_script("draw_schedules").pictures())
    stale = [path.name for path, text in drawn.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python docs/images/draw_schedules.py"
    assert {path.name for path in (DOCS / "images" / "schedules").iterdir()} == {
        path.name for path in drawn
    }


def test_every_schedule_has_its_picture_in_the_page() -> None:
    page = (DOCS / "schedules.md").read_text(encoding="utf-8")
    assert [name for name in SCHEDULES if f"(images/schedules/{name}.svg)" not in page] == []


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").rglob("*.svg")}
    assert {name: size for name, size in sizes.items() if size > 20_000} == {}
