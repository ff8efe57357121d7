"""Indented text that knows, line by line, where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Writer:
    """Collects lines of source."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._origins: dict[int, str] = {}
        self._depth = 0

    def line(self, text: str = "", *, comment: str = "", origin: str = "") -> None:
        """Adds a line; `comment` is put behind it, `origin` only remembered for `origins`."""
        full = f"{text}  # {comment}" if comment else text
        self._lines.append(("    " * self._depth + full) if full else "")
        if origin:
            self._origins[len(self._lines)] = origin

    @contextmanager
    def block(self, head: str, *, comment: str = "", origin: str = "") -> Iterator[None]:
        """Adds `head` and indents what is added inside the ``with``."""
        self.line(head, comment=comment, origin=origin)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def origins(self) -> Mapping[int, str]:
        """Line number, counted from 1 → where the line comes from."""
        return dict(self._origins)

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self._lines) + "\n"
