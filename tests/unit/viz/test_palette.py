from __future__ import annotations

from fxpipe.ir.action import Compute, Kind, Update
from fxpipe.viz.palette import (
    INK,
    KIND_CODES,
    KIND_NAME,
    KIND_SHADES,
    PAPER,
    UPDATE_CODES,
    UPDATE_SHADES,
    code_of,
    fill_of,
    ink_on,
    kind_fill,
)


def test_every_kind_has_a_name_and_colours_of_its_own() -> None:
    assert set(KIND_NAME) == set(KIND_SHADES) == set(KIND_CODES) == set(Kind)
    shades = [*UPDATE_SHADES, *(shade for kind in Kind for shade in KIND_SHADES[kind])]
    assert len(set(shades)) == len(shades)
    codes = [*UPDATE_CODES, *(code for kind in Kind for code in KIND_CODES[kind])]
    assert len(set(codes)) == len(codes)


def _light(colour: str) -> int:
    return sum(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def test_later_stages_are_darker_up_to_the_fourth() -> None:
    for kind in Kind:
        lights = [_light(kind_fill(kind, nth)) for nth in range(4)]
        assert lights == sorted(set(lights), reverse=True)
        assert kind_fill(kind, 9) == kind_fill(kind, 3)
    lights = [_light(fill_of(Update(0), nth)) for nth in range(4)]
    assert lights == sorted(set(lights), reverse=True)
    forward = Compute(Kind.FORWARD, 0, 0)
    assert fill_of(forward, 2) == kind_fill(Kind.FORWARD, 2)
    assert (code_of(forward, 5), code_of(Update(3), 1)) == (
        KIND_CODES[Kind.FORWARD][1],
        UPDATE_CODES[1],
    )


def test_ink_is_the_opposite_of_its_ground() -> None:
    assert ink_on("#ffffff") == INK
    assert ink_on("#000000") == PAPER
    assert ink_on(kind_fill(Kind.FORWARD)) == INK
    assert ink_on(kind_fill(Kind.FORWARD, 3)) == PAPER
