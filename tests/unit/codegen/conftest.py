from __future__ import annotations

import pytest
from torch import nn

from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.bindings import Bindings
from fxpipe.codegen.devices import Home
from fxpipe.codegen.imports import Imports


@pytest.fixture
def write() -> Arguments:
    return Arguments(lambda node: node.name, Imports(), Bindings(), Home(nn.Linear(1, 1)))
