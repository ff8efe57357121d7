"""Running what torch.compile has compiled as it is written, while something watches."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch


def uncompiled() -> AbstractContextManager[object]:
    """A context in which compiled modules run as written.

    Under a dispatch or function mode a compiled module runs uncompiled anyway, and the compiler then
    leaves it uncompiled for good, without a word.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
