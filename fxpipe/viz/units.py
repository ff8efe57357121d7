"""Bytes and seconds as short text."""

from __future__ import annotations


def bytes_text(nbytes: float) -> str:
    """``1536`` → ``1.5 KiB``: three digits at most, powers of 1024."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1023.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def seconds_text(seconds: float) -> str:
    """``0.0123`` → ``12.3 ms``: three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}" if seconds < 999.5 else f"{seconds:.0f} s"
    return "0 s" if seconds == 0 else f"{seconds * 1e9:.3g} ns"
