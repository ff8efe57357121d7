"""How a function or class is called by its name in source, and which import that takes."""

from __future__ import annotations

import builtins
import importlib
import math
import operator
import sys
from typing import Any, Final

import torch
import torch.nn.functional as F

from fxpipe import ops

_SPACES: Final = (
    ("", builtins, ""),
    ("F", F, "import torch.nn.functional as F"),
    ("torch", torch, "import torch"),
    ("torch.Tensor", torch.Tensor, "import torch"),
    ("math", math, "import math"),
    ("operator", operator, "import operator"),
    ("ops", ops, "from fxpipe import ops"),
    ("torch.special", torch.special, "import torch"),
    ("torch.linalg", torch.linalg, "import torch"),
    ("torch.fft", torch.fft, "import torch"),
    ("torch._C._nn", torch._C._nn, "import torch"),
)
"""Where to look first, best known names first: what they are called, what they are, their import."""


class Imports:
    """The import lines of one source file, gathered while names are written."""

    def __init__(self) -> None:
        self._lines: set[str] = set()

    def add(self, line: str) -> None:
        """Asks for an import line."""
        self._lines.add(line)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines asked for: whole modules first, each kind sorted."""
        return tuple(sorted(self._lines, key=lambda line: (line.startswith("from"), line)))

    @property
    def roots(self) -> set[str]:
        """The names that the lines bind."""
        return {line.split()[-1].split(".")[0] for line in self._lines}

    def name_of(self, target: Any) -> str | None:
        """The expression that means `target`, after its import was added; None if there is none."""
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            self.add("import torch")
            return f"torch.ops.{target}"
        short = getattr(target, "__name__", None)
        if not isinstance(short, str):
            return None
        for prefix, space, line in _SPACES:
            known = short.removeprefix(
                prefix.rpartition(".")[2] + "_"
            )  # torch.fft.fft is "fft_fft"
            if getattr(space, known, None) is target:
                if line:
                    self.add(line)
                return f"{prefix}.{known}" if prefix else known
        return self._qualified(target)

    def _qualified(self, target: Any) -> str | None:
        module = getattr(target, "__module__", None)
        path = getattr(target, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(path, str) or not is_importable(module):
            return None
        found: Any = sys.modules[module]
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is not target:
            return None
        self.add(f"import {module}")
        return f"{module}.{path}"


def is_importable(module: str) -> bool:
    """Whether ``import module`` in another file would give the module of this process."""
    if module == "__main__" or not all(part.isidentifier() for part in module.split(".")):
        return False
    try:
        return importlib.import_module(module) is sys.modules.get(module)
    except ImportError:
        return False
