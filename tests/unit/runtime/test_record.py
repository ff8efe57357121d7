from __future__ import annotations

from time import perf_counter_ns

import pytest

from fxpipe.ir.action import Compute, Kind
from fxpipe.runtime.record import Record


def test_seconds_since_the_record_was_begun() -> None:
    before = perf_counter_ns()
    record = Record(2)
    after = perf_counter_ns()
    action = Compute(Kind.FORWARD, 1, 0)
    record.ranks[1].append((action, after + 1_000_000, after + 3_000_000))
    (span,) = record.timeline().spans
    assert (span.rank, span.action) == (1, action)
    assert 1e-3 <= span.start <= 1e-3 + (after - before) * 1e-9 + 1e-12
    assert span.duration == pytest.approx(2e-3)


def test_an_empty_record() -> None:
    timeline = Record(3).timeline()
    assert timeline.spans == ()
    assert timeline.source == "run"
