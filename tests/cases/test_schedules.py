"""The same models under schedules that split backwards or give a rank several stages."""

from __future__ import annotations

import pytest

from tests.cases import (
    test_capture,
    test_frozen,
    test_inputs,
    test_outputs,
    test_sharing,
    test_skips,
    test_state,
    test_tables,
)
from tests.exact import Kind, assert_exact

KINDS: dict[str, Kind] = {
    f"{module.__name__.rpartition('_')[2]}: {name}": kind
    for module, names in (
        (test_skips, ("read in every stage", "nested", "passed on")),
        (test_sharing, ("embedding and head", "three stages", "a module called again")),
        (test_inputs, ("growing tuple", "late keywords", "no batch dimension")),
        (test_outputs, ("loss inside", "one tensor twice", "complex")),
        (test_frozen, ("first stage", "gate", "adapters", "detached")),
        (test_tables, ("rotary", "a learned bias")),
        (test_state, ("dropout", "batch norm, per micro-batch", "hooks on a skip")),
        (test_capture, ("own function", "a router", "loops")),
    )
    for name in names
    for kind in (module.KINDS[name],)
}


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2"])
@pytest.mark.parametrize("name", KINDS)
def test_cases_under_other_schedules(name: str, schedule: str) -> None:
    assert_exact(KINDS[name], 3, schedule=schedule)
