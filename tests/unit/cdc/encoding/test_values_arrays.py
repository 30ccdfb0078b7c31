"""Arrays: any nesting, any element, against a model of Postgres's array_out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.encoding.values import TypeInfo, built_in, encoder_for
from cdc.errors import ProtocolError

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
# Characters that are special in array_out, more often than chance would give them.
tricky = st.sampled_from(["", "NULL", "null", "{", "}", ",", ";", '"', "\\", "\\\\", '\\"', " ", "\n", "{}", "a,b"])
_SPECIAL = set('"\\{} \t\n\r\v\f')


def array_of(name: str, delimiter: str = ",") -> TypeInfo:
    element = TypeInfo(oid=1, name=name, kind="base")
    return TypeInfo(oid=2, name=f"_{name}", kind="array", base=element, delimiter=delimiter)


def array_out(value: Any, delimiter: str) -> str:
    """Postgres's array_out (utils/adt/arrayfuncs.c): quotes only where it must."""
    if isinstance(value, list):
        return "{" + delimiter.join(array_out(item, delimiter) for item in value) + "}"
    if value is None:
        return "NULL"
    text = str(value)
    if text == "" or text.upper() == "NULL" or delimiter in text or _SPECIAL & set(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def nested(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Rectangular arrays of one to three dimensions, and the empty one."""

    def rectangle(shape: list[int]) -> st.SearchStrategy[Any]:
        strategy = elements
        for size in reversed(shape):
            strategy = st.lists(strategy, min_size=size, max_size=size)
        return strategy

    return st.just([]) | st.lists(st.integers(1, 4), min_size=1, max_size=3).flatmap(rectangle)


@given(nested(texts | tricky | st.none()), st.sampled_from([",", ";"]))
def test_arrays_of_text_come_back_whole(value: list[Any], delimiter: str) -> None:
    """Arrays of any text, at any depth, with commas or box's semicolons, come back whole."""
    encode = encoder_for(array_of("text", delimiter), -1)
    assert json.loads(encode(array_out(value, delimiter).encode())) == value


@given(nested(st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_arrays_of_integers_come_back_whole(value: list[Any]) -> None:
    """The fast path for integer arrays gives what the general one does."""
    encode = encoder_for(array_of("int8"), -1)
    assert json.loads(encode(array_out(value, ",").encode())) == value


@given(nested(st.sampled_from(["t", "f"]) | st.none()))
def test_elements_have_the_form_of_their_type(value: list[Any]) -> None:
    """An array is its elements' encoder applied to each."""

    def expected(item: Any) -> Any:
        return [expected(one) for one in item] if isinstance(item, list) else None if item is None else item == "t"

    encode = encoder_for(array_of("bool"), -1)
    assert json.loads(encode(array_out(value, ",").encode())) == expected(value)


def test_the_typmod_of_an_array_is_that_of_its_elements() -> None:
    """timestamptz(3)[] has three digits."""
    timestamps = built_in(1185)
    assert timestamps is not None
    assert encoder_for(timestamps, 3)(b'{"2024-02-29 12:34:56+00"}') == b'["2024-02-29T12:34:56.000Z"]'


@pytest.mark.parametrize("name", ["text", "int4"])
def test_other_lower_bounds_keep_postgres_text(name: str) -> None:
    """A JSON array starts where it starts; only the text says where Postgres's does."""
    encode = encoder_for(array_of(name), -1)
    assert encode(b"[0:1][2:2]={{1},{2}}") == b'"[0:1][2:2]={{1},{2}}"'


@pytest.mark.parametrize("name", ["text", "int4"])
def test_what_is_no_array_is_refused(name: str) -> None:
    """Text that is no array literal is refused."""
    with pytest.raises(ProtocolError, match="array"):
        encoder_for(array_of(name), -1)(b"1 2")
