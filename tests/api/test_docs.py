"""Every Python block of the README and of docs/ runs; blocks of one page share their names.

A text block right after a Python block is what that block prints.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
PLACE = re.compile(r"\.md:\d+")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_blocks_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    linecache.checkcache(str(page))
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "docs_page"}
    for block in BLOCK.finditer(text):
        lines_before = text.count("\n", 0, block.start("code"))
        # Padded, so that an error names the line of the page.
        exec(compile("\n" * lines_before + block["code"], str(page), "exec"), names)
        printed = capsys.readouterr().out
        if block["printed"] is not None:
            assert plain(printed) == plain(block["printed"])


def plain(text: str) -> list[str]:
    """Lines that are not blank, without spaces at their ends; which line of a page does not matter."""
    return [PLACE.sub(".md:0", line.rstrip()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert missing == []


def test_every_guarantee_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8")
    ]
    assert missing == []
