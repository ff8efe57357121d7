from __future__ import annotations

import pytest

from fxpipe.errors import UnsupportedCountsError
from fxpipe.schedules.forms import FORMS, summary
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.unit import unit_timeline


def test_there_is_one_for_every_name() -> None:
    assert list(FORMS) == list(SCHEDULES)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_what_ranks_keep_is_as_the_form_says(name: str) -> None:
    form, found = FORMS[name], 0
    for p in (1, 2, 3, 4):
        if p % 2 and form.needs_even_ranks:
            with pytest.raises(UnsupportedCountsError):
                SCHEDULES[name](p, p, 4)
            continue
        for v in (1, 2, 3):
            for m in (1, 2, p, 2 * p, 2 * p + 1, 3 * p):
                peaks = unit_timeline(SCHEDULES[name](p * v, p, m)).peak_bytes
                for rank, kept in enumerate(peaks):
                    expected = form.peak(p, v, m, rank)
                    if expected is not None and form.is_bound:
                        assert kept / v <= expected
                    elif expected is not None:
                        assert kept / v == pytest.approx(expected), (p, v, m, rank)
                    found += expected is not None
    assert found >= 10


def test_the_form_holds_at_the_counts_a_schedule_is_made_for() -> None:
    for form in FORMS.values():
        assert form.peak(4, form.stages_per_rank, 8, 0) is not None


def test_a_summary_names_the_paper() -> None:
    assert summary("gpipe").startswith("GPipe: all forwards, then all backwards (")
    assert "2401.10241" in summary("zb-v")
    assert all("\n" not in summary(name) for name in SCHEDULES)
