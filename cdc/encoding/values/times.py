"""Encoders of dates, times and intervals as ISO 8601 strings, as Debezium writes them with
time.precision.mode=isostring. Values that ISO 8601 does not have (infinity, 24:00:00) keep Postgres's text.

The first condition of each encoder handles the common case. A regular expression handles the rest. A dash as the fifth
character means a year of four digits in ISO style: no other DateStyle, no longer year and no infinity has a dash there.
Text that matches neither means that the session does not have the parameters of SESSION_SETTINGS. The encoders then
raise an error.
"""

from __future__ import annotations

import re

from cdc.encoding.values.types import Encode
from cdc.errors import ProtocolError

_DASH, _C = b"-C"  # the last letter of BC


def date(value: bytes) -> bytes:
    if len(value) == 10 and value[4] == _DASH:
        return b'"%bZ"' % value
    return _unusual(value, "date")


def timestamp(value: bytes) -> bytes:
    if value[4] == _DASH and value[-1] != _C:
        return b'"%bZ"' % value.replace(b" ", b"T")
    return _unusual(value, "timestamp")


DATE, TIMESTAMP = date, timestamp
"""A hot loop may inline the common case of these."""


def timestamptz(digits: int) -> Encode:
    """Return the encoder of timestamptz(digits).

    The encoded value always has `digits` fractional digits, though Postgres omits trailing zeros. Rows of one
    transaction often have the same now(), so the encoder caches its last value and result. They are one tuple, since
    several threads use the encoder.
    """
    ends = {22: (b"." + b"0" * digits if digits else b"") + b'Z"'}
    ends.update({23 + shown: b"0" * (digits - shown) + b'Z"' for shown in range(1, digits + 1)})

    last: tuple[bytes | None, bytes] = (None, b"")

    def encode(value: bytes) -> bytes:
        nonlocal last
        known, encoded = last
        if value == known:
            return encoded
        end = ends.get(len(value))
        if end is None or value[4] != _DASH or value[-3:] != b"+00":
            return _unusual(value, "timestamptz", digits)
        encoded = b'"' + value[:-3].replace(b" ", b"T") + end
        last = (value, encoded)
        return encoded

    encode.digits = digits  # type: ignore[attr-defined]  # for the hot loop, which inlines the common case
    return encode


def time(value: bytes) -> bytes:
    return b'"%bZ"' % value


def timetz(value: bytes) -> bytes:
    """Encode a time with its offset, which is part of the value. Postgres writes `+05`, ISO 8601 `+05:00`."""
    if value[-3:] == b"+00":
        return b'"%bZ"' % value[:-3]
    return b'"%b:00"' % value if value[-3] in b"+-" else b'"%b"' % value


def interval(value: bytes) -> bytes:
    """Encode an interval with all fields, including zeros, each with its own sign."""
    match = _INTERVAL(value)
    if match is not None:
        return b'"P%bY%bM%bDT%bH%bM%bS"' % match.groups(b"0")
    return _infinite(value, "interval")


def _unusual(value: bytes, type_name: str, digits: int | None = None) -> bytes:
    match = _LONG(value)
    if match is None:
        return _infinite(value, type_name)
    year, month_and_day, clock, fraction, zone, before_christ = match.groups()
    if (clock is None) is (type_name != "date") or (zone is None) is (type_name == "timestamptz"):
        raise _not_iso(type_name)
    number = 1 - int(year) if before_christ else int(year)
    iso = b"%b%04d%b" % (b"+" if number > 9999 else b"-" if number < 0 else b"", abs(number), month_and_day)
    if clock is None:
        return b'"%bZ"' % iso
    if digits is not None:
        shown = (fraction or b".")[1:]
        fraction = b"." + shown.ljust(digits, b"0") if digits else b""
    return b'"%bT%b%bZ"' % (iso, clock, fraction or b"")


def _infinite(value: bytes, type_name: str) -> bytes:
    if value in (b"infinity", b"-infinity"):
        return b'"%b"' % value
    raise _not_iso(type_name)


def _not_iso(type_name: str) -> ProtocolError:
    return ProtocolError(
        f"A {type_name} value is not in ISO format and UTC.",
        remedy="The session must have the parameters of cdc.postgres.connection.SESSION_SETTINGS.",
    )


_LONG = re.compile(
    rb"(\d{4,})(-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(\.\d{1,6})?(\+00)?)?( BC)?",
).fullmatch
_INTERVAL = re.compile(
    rb"P(?=.)(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    rb"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?)S)?)?",
).fullmatch
