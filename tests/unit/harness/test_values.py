"""The comparer reads values so that equal ones are equal from any source, and others never are."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.comparison import canonical, literals, temporal
from tests.harness.postgres.catalog import PgType

_INT_ARRAY = PgType("_int4", PgType("int4"))
_TEXT_ARRAY = PgType("_text", PgType("text"))


@pytest.mark.parametrize(
    ("type_", "text", "json_text"),
    [
        ("int8", "9007199254740993", "9007199254740993"),
        ("numeric", "0.10", '"0.10"'),
        ("numeric", "NaN", '"NaN"'),
        ("float8", "0.1", "0.1"),
        ("float8", "100", "100.0"),
        ("float8", "1e+300", "1E300"),
        ("float8", "-Infinity", '"-Infinity"'),
        ("float8", "NaN", '"NaN"'),
        ("float4", "1.1", "1.100000023841858"),
        ("bool", "t", "true"),
        ("text", "", '""'),
        ("bytea", "\\x00ff10", '"AP8Q"'),
        ("date", "2024-02-29", '"2024-02-29"'),
        ("date", "2024-02-29", '"2024-02-29Z"'),
        ("date", "0044-03-15 BC", '"-0043-03-15"'),
        ("date", "infinity", '"infinity"'),
        ("time", "24:00:00", '"24:00:00"'),
        ("timetz", "12:34:56.789+05:30", '"12:34:56.789+05:30"'),
        ("timestamp", "2024-02-29 12:34:56.7", '"2024-02-29T12:34:56.700000Z"'),
        ("timestamptz", "2024-02-29 10:34:56.789012+00", '"2024-02-29T12:34:56.789012+02:00"'),
        ("timestamptz", "12024-01-01 00:00:00+00", '"+12024-01-01T00:00:00Z"'),
        ("interval", "1 year 2 mons 3 days 04:05:06.789", '"P1Y2M3DT4H5M6.789S"'),
        ("interval", "-10 mons -3 days +04:05:06", '"P0Y-10M-3DT4H5M6S"'),
        ("interval", "-00:00:00.000001", '"PT-0.000001S"'),
        ("json", '{"a": 1, "a": 2}', '"{\\"a\\":1,\\"a\\":2}"'),
        ("jsonb", '{"b": 1.10, "a": [null]}', '"{\\"a\\": [null], \\"b\\": 1.10}"'),
        ("hstore", '"a"=>"1", "b"=>NULL, "c d"=>"e\\"f"', '"{\\"c d\\":\\"e\\\\\\"f\\",\\"a\\":\\"1\\",\\"b\\":null}"'),
        ("int4range", "[1,5)", '"[1,5)"'),
    ],
)
def test_the_same_value_is_equal(type_: str, text: str, json_text: str) -> None:
    """Postgres's text and the topic's JSON of the same value are equal."""
    read = canonical.from_json(PgType(type_), canonical.loads(json_text))
    assert canonical.from_text(PgType(type_), text) == read


@pytest.mark.parametrize(
    ("type_", "text", "json_text"),
    [
        ("int4", "1", '"1"'),
        ("int4", "1", "true"),
        ("int4", "1", "1.0"),
        ("int8", "9007199254740993", "9007199254740992"),
        ("numeric", "0.10", '"0.1"'),
        ("numeric", "1", "1"),
        ("text", "1", "1.0"),
        ("text", "", "null"),
        ("bool", "t", '"true"'),
        ("float8", "0", "-0.0"),
        ("time", "24:00:00", '"00:00:00"'),
        ("timestamptz", "2024-02-29 10:34:56+00", '"2024-02-29T10:34:56.000001Z"'),
        ("timestamptz", "2024-02-29 10:34:56+00", '"yesterday"'),
        ("interval", "1 mon", '"P30D"'),
        ("json", '{"a": 1, "b": 2}', '"{\\"b\\": 2, \\"a\\": 1}"'),
        ("jsonb", '{"a": 1}', '"{\\"a\\": \\"1\\"}"'),
        ("jsonb", '{"a": 1.0}', '"{\\"a\\": 1.00}"'),
        ("bytea", "\\x00", '"\\\\x00"'),
    ],
)
def test_another_value_differs(type_: str, text: str, json_text: str) -> None:
    """A lost digit, another scale or a number for a text is a difference."""
    read = canonical.from_json(PgType(type_), canonical.loads(json_text))
    assert canonical.from_text(PgType(type_), text) != read


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (_INT_ARRAY, "{}", []),
        (_INT_ARRAY, "{1,NULL,3}", [1, None, 3]),
        (_INT_ARRAY, "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
        (_INT_ARRAY, "[0:2]={1,2,3}", "[0:2]={1,2,3}"),
        (_TEXT_ARRAY, r'{a,"b,c","d\"e","NULL",NULL,"",x;y}', ["a", "b,c", 'd"e', "NULL", None, "", "x;y"]),
    ],
)
def test_arrays_are_equal_element_by_element(type_: PgType, text: str, value: Any) -> None:
    """Nesting, NULLs, quoting and unusual bounds all count."""
    assert canonical.from_text(type_, text) == canonical.from_json(type_, value)


def test_arrays_with_other_bounds_differ() -> None:
    """The bounds are part of an array's value."""
    assert canonical.from_text(_INT_ARRAY, "[0:2]={1,2,3}") != canonical.from_json(_INT_ARRAY, [1, 2, 3])


def test_boxes_are_separated_by_semicolons() -> None:
    """The one type with a delimiter of its own is read by it."""
    assert literals.array("{(3,4),(1,2);(0,0),(0,0)}", ";") == ("", ["(3,4),(1,2)", "(0,0),(0,0)"])


@given(st.datetimes(timezones=st.just(dt.timezone.utc)))
def test_timestamps_are_exact(moment: dt.datetime) -> None:
    """Within the years that Python knows, the arithmetic is Python's to the microsecond."""
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    expected = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    assert temporal.microseconds(moment.isoformat()) == expected
    assert temporal.days(moment.date().isoformat()) == since.days
