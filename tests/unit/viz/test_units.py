from __future__ import annotations

import pytest

from fxpipe.viz.units import bytes_text, seconds_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (123_456, "121 KiB"),
        (5 * 2**20, "5 MiB"),
        (3 * 2**30, "3 GiB"),
        (2**41, "2 TiB"),
    ],
)
def test_bytes(nbytes: int, text: str) -> None:
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.0, "1 s"),
        (12.345, "12.3 s"),
        (1234.5, "1234 s"),
        (0.0123, "12.3 ms"),
        (0.00001, "10 µs"),
        (2e-9, "2 ns"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
