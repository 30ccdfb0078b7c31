"""Formats durations, row counts and sizes for people. The dashboard's script formats them in the same way."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def in_time(seconds: float) -> str:
    """Return a duration in its largest fitting unit: `3 s`, `12 min`, `2.5 h`."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def in_rows(count: int, one: str, many: str) -> str:
    """Return a row count with its verb, `one` or `many`: `1 row is`, `2,000 rows are`."""
    return f"1 row {one}" if count == 1 else f"{count:,} rows {many}"


def in_bytes(count: int) -> str:
    """Return a size in decimal units: `512 bytes`, `1.5 MB`."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
