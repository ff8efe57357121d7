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


def test_what_is_not_split_is_told_in_the_stage() -> None:
    """A function with a backward of its own gives its weight's gradient with that of its input."""
    kind = KINDS["capture: own function"]
    with kind.pipe(kind.model(), 3, schedule="zb-h1") as pipe:
        told = [
            [line for line in s.source.splitlines() if "not split" in line] for s in pipe.stages
        ]
    assert told == [
        [],
        ["# not split damped.weight: gradients come in the pass of the inputs"],
        [],
    ]
    with kind.pipe(kind.model(), 3) as pipe:
        assert not any("not split" in stage.source for stage in pipe.stages)
