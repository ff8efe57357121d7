from __future__ import annotations

import re

import pytest

from fxpipe.cli.schedule_list import schedule_list
from fxpipe.schedules.forms import FORMS


def test_a_line_each_with_counts_and_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = {line.split()[0]: line for line in schedule_list().splitlines() if line.strip()}
    assert set(FORMS) <= set(lines)
    assert re.search(r"^  zb-v +2 +m >= 2 p - 1 +zero bubble .*2401\.10241\)$", lines["zb-v"])
    assert re.search(r"^  chimera +1 +p even, p divides m +two replicas", lines["chimera"])
    assert re.search(r"^  gpipe +1 +all forwards", lines["gpipe"])


def test_a_narrow_terminal_wraps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    table = schedule_list().split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 90
    assert len(table.splitlines()) > 2 + len(FORMS)
