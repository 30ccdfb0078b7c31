"""Dates, times and intervals as plain numbers, from Postgres's text or from ISO 8601 text.

Python's own datetime ends at the year 9999 and knows no BC, no infinity and no 24:00:00; Postgres has them all.
"""

from __future__ import annotations

import re
from typing import Final

Moment = int | str  # days or microseconds since 1970-01-01, or "infinity" / "-infinity"

_DATE: Final = r"(?P<year>[+-]?\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?"
_ZONE: Final = r"(?P<zone>Z|[+-]\d\d(?::?\d\d(?::\d\d)?)?)?"
_DATE_ONLY: Final = re.compile(rf"{_DATE}Z?(?P<bc> BC)?")
_TIMESTAMP: Final = re.compile(rf"{_DATE}[ T]{_TIME}{_ZONE}(?P<bc> BC)?")
_TIME_ONLY: Final = re.compile(rf"{_TIME}{_ZONE}")
_ISO_INTERVAL: Final = re.compile(
    r"P(?:(?P<years>-?\d+)Y)?(?:(?P<months>-?\d+)M)?(?:(?P<days>-?\d+)D)?"
    r"(?:T(?:(?P<hours>-?\d+)H)?(?:(?P<minutes>-?\d+)M)?(?:(?P<seconds>-?\d+(?:\.\d+)?)S)?)?"
)
_POSTGRES_INTERVAL: Final = re.compile(
    r"(?:(?P<years>[+-]?\d+) years?)? ?(?:(?P<months>[+-]?\d+) mons?)? ?(?:(?P<days>[+-]?\d+) days?)? ?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d(?:\.\d+)?))?"
)
_INFINITE: Final = ("infinity", "-infinity")
_SECOND: Final = 1_000_000


def days(text: str) -> Moment:
    """A date as days since 1970-01-01."""
    return text if text in _INFINITE else _days(_match(_DATE_ONLY, text))


def microseconds(text: str) -> Moment:
    """A timestamp as microseconds since 1970-01-01 00:00:00 UTC; without a zone, as if it were UTC."""
    if text in _INFINITE:
        return text
    match = _match(_TIMESTAMP, text)
    return _days(match) * 86_400 * _SECOND + _time_of_day(match) - _zone_seconds(match) * _SECOND


def time_of_day(text: str) -> int:
    """Microseconds since midnight UTC; 24:00:00 is not 00:00:00."""
    match = _match(_TIME_ONLY, text)
    return _time_of_day(match) - _zone_seconds(match) * _SECOND


def time_and_zone(text: str) -> tuple[int, int]:
    """Microseconds since local midnight, and the zone in seconds east of UTC."""
    match = _match(_TIME_ONLY, text)
    return _time_of_day(match), _zone_seconds(match)


def interval(text: str) -> tuple[int, int, int] | str:
    """Months, days, microseconds: the three things that Postgres stores."""
    if text in _INFINITE:
        return text
    match = _match(_ISO_INTERVAL if text.startswith("P") else _POSTGRES_INTERVAL, text)
    part = {name: value or "0" for name, value in match.groupdict().items()}
    clock = (int(part["hours"]) * 3600 + int(part["minutes"]) * 60) * _SECOND + _seconds(part["seconds"])
    if match.groupdict().get("sign") == "-":
        clock = -clock
    return int(part["years"]) * 12 + int(part["months"]), int(part["days"]), clock


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"not understood: {text!r}")
    return match


def _days(match: re.Match[str]) -> int:
    """Days from 1970-01-01 in the proleptic Gregorian calendar (the usual era arithmetic)."""
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if match["bc"]:
        year = 1 - year
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _time_of_day(match: re.Match[str]) -> int:
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"] or 0)
    return seconds * _SECOND + int((match["fraction"] or "").ljust(6, "0"))


def _zone_seconds(match: re.Match[str]) -> int:
    zone = match["zone"]
    if zone in (None, "Z"):
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
    return -seconds if zone[0] == "-" else seconds


def _seconds(text: str) -> int:
    whole, _, fraction = text.partition(".")
    amount = abs(int(whole)) * _SECOND + int(fraction.ljust(6, "0"))
    return -amount if whole.startswith("-") else amount
