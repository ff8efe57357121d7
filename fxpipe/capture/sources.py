"""Where in the user's code a call was made."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Final

import torch

import fxpipe

_OURS: Final = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(fxpipe.__file__)) + os.sep,
    "<",
)
_LIBRARY: Final = tuple(
    os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep + name
    for module, name in (
        (os, "contextlib.py"),
        (os, "functools.py"),
        (os, "threading.py"),
        (os, "random.py"),
    )
)
_RECORD: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "record.py")
"""What calls the model: further out nothing belongs to it."""


class Sources:
    """Texts of source lines, looked up once per line."""

    def __init__(self) -> None:
        self._texts: dict[tuple[CodeType, int], str] = {}

    def here(self) -> str:
        """The model's innermost line that is neither torch's nor fxpipe's; "" if there is none."""
        return self.of(sys._getframe(1))

    def of(self, innermost: FrameType) -> str:
        """The same, from another frame on."""
        frame = self.frame_of(innermost)
        return "" if frame is None else self._text(frame.f_code, frame.f_lineno)

    def frame_of(self, innermost: FrameType) -> FrameType | None:
        """The frame of that line."""
        frame: FrameType | None = innermost
        while frame is not None:
            code = frame.f_code
            if code.co_filename == _RECORD:
                break
            if not code.co_filename.startswith(_OURS) and code.co_filename not in _LIBRARY:
                return frame
            frame = frame.f_back
        return None

    def forward_of(self, module: torch.nn.Module | None) -> str:
        """Where a module's forward begins; "" if it has no code."""
        code = getattr(getattr(type(module), "forward", None), "__code__", None)
        return "" if code is None else self._text(code, code.co_firstlineno)

    def _text(self, code: CodeType, line: int) -> str:
        key = (code, line)
        if key not in self._texts:
            text = linecache.getline(code.co_filename, line).strip()
            place = f"{os.path.basename(code.co_filename)}:{line} in {code.co_name}"
            self._texts[key] = f"{place}: {text}" if text else place
        return self._texts[key]
