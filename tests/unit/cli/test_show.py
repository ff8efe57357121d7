from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fxpipe.cli.show import step_line, write
from fxpipe.schedules.gpipe import gpipe
from fxpipe.simulator.unit import unit_timeline


def test_step_line() -> None:
    line = step_line(unit_timeline(gpipe(2, 2, 4)))
    assert line == "step 10 s, bubble 20.0% of the total (25.0% of ideal)"


def test_write_makes_the_folder_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "file.txt"
    write(path, "é")
    assert path.read_text(encoding="utf-8") == "é"
    assert capsys.readouterr().out == f"wrote {path}\n"


def test_what_cannot_be_written_is_a_wrong_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.BadParameter, match=r"cannot write .*file/below: \w"):
        write(tmp_path / "file" / "below", "")
    with pytest.raises(typer.BadParameter, match="Is a directory"):
        write(tmp_path, "")
