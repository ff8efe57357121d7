import io
import sys
import time

import pytest

from fxpipe.analysis import progress as module
from fxpipe.analysis.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def advance(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **options: bool) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with progress("measuring", **options) as step:
        time.sleep(0.001)
        step()
        step(total=2)
    return stream.getvalue()


def test_a_bar_is_drawn_on_a_terminal_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "measuring" in advance(monkeypatch, Terminal())


def test_quick_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress("measuring") as step:
        step()
    assert "measuring" not in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_bar_without_a_terminal_or_if_not_wanted(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]
) -> None:
    shown = stream is not Terminal
    assert advance(monkeypatch, stream(), shown=shown) == ""
