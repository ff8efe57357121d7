"""All entries of the zoo."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from tests.zoo import models
from tests.zoo.entry import Entry


def _entries() -> tuple[Entry, ...]:
    found: list[Entry] = []
    for module in sorted(info.name for info in pkgutil.iter_modules(models.__path__)):
        held = importlib.import_module(f"{models.__name__}.{module}")
        found += getattr(held, "ENTRIES", ())
    names = [entry.name for entry in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two entries have the name {sorted(twice)}"
    return tuple(found)


ZOO: Final = _entries()
