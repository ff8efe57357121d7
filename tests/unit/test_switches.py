from __future__ import annotations

from torch import nn

from fxpipe.switches import Switches


class Rated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate, self.calls, self.always, self.flag = 0.0, 0, 0.5, False


def test_what_becomes_a_fraction_is_on() -> None:
    model = nn.Sequential(Rated(), nn.Dropout(0))
    switches = Switches(model)
    assert switches.on() == ()
    switches.look()
    assert switches.on() == ()
    model[0].calls, model[0].flag, model[0].always = 3, True, 0.25
    assert switches.on() == (), "a count, a flag and another rate switch nothing on"
    model[0].rate = 0.1
    one = switches.on()
    model[1].p = 0.2
    both = switches.on()
    assert len(one) == 1
    assert set(one) < set(both)
    model[0].rate = model[1].p = 0
    assert switches.on() == ()


def test_numbers_stay_when_the_model_is_recorded_again() -> None:
    model = nn.Sequential(Rated(), nn.Dropout(0.5))
    switches = Switches(model)
    switches.look()
    model[0].rate = 0.1
    before = switches.on()
    model[1].p = 0.0
    switches.look()
    assert switches.on() == before
    model[1].p = 0.3
    assert len(switches.on()) == 2
    model[1] = nn.Identity()
    switches.look()
    assert switches.on() == before
