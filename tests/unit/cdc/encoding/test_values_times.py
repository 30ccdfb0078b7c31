"""Dates, times and intervals have the ISO form for any value of Postgres, and other text is refused."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.encoding.values import Encode, TypeInfo, encoder_for
from cdc.errors import ProtocolError

years = st.integers(-4713, 294_276)
months_days = st.dates().map(lambda day: f"{day:-%m-%d}")
clocks = st.times().map(lambda time: f"{time:%H:%M:%S}")
fractions = st.integers(0, 999_999).map(lambda micros: f".{micros:06d}".rstrip("0").rstrip("."))


def encoder(name: str, typmod: int = -1) -> Encode:
    return encoder_for(TypeInfo(oid=0, name=name, kind="base"), typmod)


def written(encode: Encode, text: str) -> object:
    value: object = json.loads(encode(text.encode()))
    return value


def iso_year(year: int) -> str:
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}"


def postgres(year: int, rest: str) -> str:
    """Postgres has no year 0: 1 BC comes before 1."""
    return f"{year:04d}{rest}" if year > 0 else f"{1 - year:04d}{rest} BC"


@given(years, months_days)
def test_dates(year: int, month_day: str) -> None:
    """Any date from 4714 BC to the year 294276."""
    assert written(encoder("date"), postgres(year, month_day)) == f"{iso_year(year)}{month_day}Z"


@given(years, months_days, clocks, fractions)
def test_timestamps(year: int, month_day: str, clock: str, fraction: str) -> None:
    """The fraction as Postgres shows it."""
    text = postgres(year, f"{month_day} {clock}{fraction}")
    assert written(encoder("timestamp"), text) == f"{iso_year(year)}{month_day}T{clock}{fraction}Z"


@given(years, months_days, clocks, st.integers(-1, 6), st.data())
def test_timestamptz(year: int, month_day: str, clock: str, typmod: int, data: st.DataObject) -> None:
    """As many digits as the type has, always in UTC."""
    digits = 6 if typmod < 0 else typmod
    micros = data.draw(st.integers(0, 10**digits - 1).map(lambda number: f"{number:0{digits}d}" if digits else ""))
    shown = micros.rstrip("0")
    text = postgres(year, f"{month_day} {clock}{'.' if shown else ''}{shown}+00")
    expected = f"{iso_year(year)}{month_day}T{clock}{'.' if digits else ''}{micros}Z"
    assert written(encoder("timestamptz", typmod), text) == expected


@given(st.datetimes())
def test_an_ordinary_timestamptz_is_what_python_reads(moment: datetime) -> None:
    """The common form is the one that every ISO 8601 reader takes."""
    text = f"{moment.isoformat(sep=' ')}+00"
    value = written(encoder("timestamptz"), text)
    assert isinstance(value, str)
    assert datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ") == moment  # noqa: DTZ007 - both without a zone


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamptz", "interval"])
def test_infinity_is_a_word(name: str) -> None:
    """No far-away date stands in for it."""
    assert encoder(name)(b"infinity") == b'"infinity"'
    assert encoder(name)(b"-infinity") == b'"-infinity"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:34:56.789+00", "12:34:56.789Z"),
        ("24:00:00+00", "24:00:00Z"),
        ("12:34:56+05", "12:34:56+05:00"),
        ("12:34:56-08", "12:34:56-08:00"),
        ("12:34:56+05:30", "12:34:56+05:30"),
        ("12:34:56-00:30", "12:34:56-00:30"),
        ("12:34:56+01:23:45", "12:34:56+01:23:45"),
    ],
)
def test_timetz_keeps_its_offset(text: str, expected: str) -> None:
    """The offset is part of a timetz, unlike a timestamptz."""
    assert written(encoder("timetz"), text) == expected


fields = st.integers(-(10**9), 10**9)


@given(fields, fields, fields, fields, fields, st.integers(-59_999_999, 59_999_999))
def test_intervals_write_every_field(year: int, month: int, day: int, hour: int, minute: int, micros: int) -> None:
    """Postgres leaves zero fields out; Debezium's form has all six."""
    sign = "-" if micros < 0 else ""
    seconds = f"{sign}{abs(micros) // 10**6}.{abs(micros) % 10**6:06d}".rstrip("0").rstrip(".")
    seconds = "0" if seconds in ("-0", "0") else seconds
    numbers = [str(number) for number in (year, month, day, hour, minute)] + [seconds]
    shown = [f"{number}{unit}" if number != "0" else "" for number, unit in zip(numbers, "YMDHMS", strict=True)]
    date, time = "".join(shown[:3]), "".join(shown[3:])
    text = f"P{date}T{time}" if time else f"P{date}" if date else "PT0S"
    assert written(encoder("interval"), text) == "P{}Y{}M{}DT{}H{}M{}S".format(*numbers)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", "29.02.2024"),
        ("date", "02/29/2024"),
        ("date", "2024-02-29 00:00:00"),
        ("timestamp", "29.02.2024 12:34:56"),
        ("timestamp", "Thu Feb 29 12:34:56 2024"),
        ("timestamp", "02/29/2024 12:34:56"),
        ("timestamptz", "2024-02-29 12:34:56+02"),
        ("timestamptz", "2024-02-29 12:34:56.789012+10"),
        ("timestamptz", "2024-02-29 12:34:56+05:30"),
        ("timestamptz", "29.02.2024 12:34:56.789012 UTC"),
        ("timestamptz", "2024-02-29 12:34:56"),
        ("timestamptz", ""),
        ("interval", "1 day 02:03:04"),
        ("interval", "P"),
    ],
)
def test_text_of_another_session_is_refused(name: str, text: str) -> None:
    """Text of another DateStyle or TimeZone is refused."""
    with pytest.raises(ProtocolError, match=name):
        encoder(name)(text.encode())
