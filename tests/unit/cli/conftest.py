from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fxpipe.cli.main import app


@pytest.fixture
def fxpipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``fxpipe("plan", "module:factory", …)`` runs a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call
