"""The encoders of single values give valid JSON that holds the whole value, for anything that Postgres sends."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.encoding.values import IDENTITY, QUOTE, Encode, TypeInfo, built_in, encoder_for
from cdc.errors import ProtocolError

# Postgres text holds no NUL, and UTF-8 no surrogates.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))


def encoder(name: str, typmod: int = -1) -> Encode:
    return encoder_for(TypeInfo(oid=0, name=name, kind="base"), typmod)


def written(encode: Callable[[bytes], bytes], text: str) -> object:
    value: object = json.loads(encode(text.encode()))
    return value


@given(texts)
def test_text_comes_back_whole(text: str) -> None:
    """The JSON string holds every character of the text."""
    assert written(encoder("text"), text) == text


@pytest.mark.parametrize("name", ["text", "varchar", "bpchar", "name", "json", "jsonb", "xml", "tsvector", "jsonpath"])
def test_types_that_are_text_share_one_form(name: str) -> None:
    """JSON documents are encoded as strings, since parsing could change them."""
    assert encoder(name)(b'{"a":\t1.10}') == b'"{\\"a\\":\\t1.10}"'


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_json_integers(number: int) -> None:
    """Integers keep every digit, also where the hot loop skips the call."""
    for name in ("int2", "int4", "int8", "oid"):
        assert encoder(name) is IDENTITY
    assert written(IDENTITY, str(number)) == number


@given(st.decimals(allow_nan=True, allow_infinity=True))
def test_numerics_are_exact_strings(number: Decimal) -> None:
    """No digit and no trailing zero is lost; NaN and infinity are words."""
    text = str(number) if not number.is_finite() else f"{number:f}"
    assert encoder("numeric") is QUOTE
    assert written(QUOTE, text) == text


@given(st.floats())
def test_floats_come_back_to_the_bit(number: float) -> None:
    """NaN and infinity are strings, everything else is a JSON number that looks like a float."""
    text = postgres_float(number)
    value = written(encoder("float8"), text)
    if math.isfinite(number):
        assert isinstance(value, float)
        assert struct.pack("d", value) == struct.pack("d", number)
    else:
        assert value == text


def postgres_float(number: float) -> str:
    """float8out: like repr, but without `.0` and with Postgres's words."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number).removesuffix(".0")


def test_booleans() -> None:
    """t and f are true and false."""
    assert encoder("bool")(b"t") == b"true"
    assert encoder("bool")(b"f") == b"false"


@given(st.binary())
def test_bytea_is_base64(data: bytes) -> None:
    """Any bytes, none included, come back."""
    value = written(encoder("bytea"), "\\x" + data.hex())
    assert isinstance(value, str)
    assert base64.b64decode(value, validate=True) == data


def test_bytea_in_escape_form_is_refused() -> None:
    """bytea in escape form, which only a session without our settings sends, is refused."""
    with pytest.raises(ProtocolError, match="bytea"):
        encoder("bytea")(b"abc")


@given(st.integers(2, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2**n - 1))))
def test_bits_are_little_endian_bytes(case: tuple[int, int]) -> None:
    """Together with the column's length the bytes give every bit back."""
    length, number = case
    value = written(encoder("bit", length), f"{number:0{length}b}")
    assert isinstance(value, str)
    assert int.from_bytes(base64.b64decode(value), "little") == number


def test_one_bit_is_a_boolean_and_bits_without_a_length_are_digits() -> None:
    """Without a length the bytes would lose the leading zeros."""
    assert encoder("bit", 1)(b"1") == b"true"
    assert encoder("bit", -1)(b"0101") == b'"0101"'
    assert encoder("varbit", 8)(b"0101") == b'"0101"'


@given(st.integers(-(2**63), 2**63 - 1))
def test_money_is_a_plain_decimal(cents: int) -> None:
    """Sign and separators of the C locale are taken off, nothing else."""
    sign, whole, part = "-" if cents < 0 else "", abs(cents) // 100, abs(cents) % 100
    assert written(encoder("money"), f"{sign}${whole:,}.{part:02d}") == f"{sign}{whole}.{part:02d}"


@pytest.mark.parametrize("text", ["1.234,56 €", "Fr.1'234.56", "1234"])
def test_money_of_another_locale_is_refused(text: str) -> None:
    """Money of another locale is refused, since it could be read a hundred times too large."""
    with pytest.raises(ProtocolError, match="money"):
        encoder("money")(text.encode())


@given(st.floats(), st.floats())
def test_points_hold_both_coordinates_twice(x: float, y: float) -> None:
    """As numbers, and as well-known binary."""
    value = written(encoder("point"), f"({postgres_float(x)},{postgres_float(y)})")
    assert isinstance(value, dict)
    _, _, *binary = struct.unpack("<BIdd", base64.b64decode(value["wkb"]))
    for expected, number, same in zip((x, y), (value["x"], value["y"]), binary, strict=True):
        assert repr(float(number)) == repr(expected) == repr(same)


@given(st.dictionaries(texts, texts | st.none()))
def test_hstore_is_a_json_object_in_a_string(pairs: dict[str, str | None]) -> None:
    """Any keys and values, with NULLs, quotes and arrows in them."""

    def quoted(text: str | None) -> str:
        return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    hstore = TypeInfo(oid=1, name="public.hstore", kind="base", extension="hstore")
    text = ", ".join(f"{quoted(key)}=>{quoted(value)}" for key, value in pairs.items())
    value = written(encoder_for(hstore, -1), text)
    assert isinstance(value, str)
    assert json.loads(value) == pairs


def test_a_vector_is_a_json_array() -> None:
    """pgvector's own text is JSON already."""
    vector = TypeInfo(oid=1, name="public.vector", kind="base", extension="vector")
    assert encoder_for(vector, 3) is IDENTITY
    array = TypeInfo(oid=2, name="public._vector", kind="array", base=vector)
    assert encoder_for(array, 3)(b'{"[1,2.5]",[3]}') == b"[[1,2.5],[3]]"


def test_a_users_type_of_a_known_name_is_text() -> None:
    """Only the extension's own hstore, and only pg_catalog's own date, have those forms."""
    for name in ("public.hstore", "public.vector", "mine.date"):
        assert encoder_for(TypeInfo(oid=1, name=name, kind="base"), -1)(b"[1]") == b'"[1]"'


def test_every_built_in_type_has_an_encoder() -> None:
    """No OID of the static table is without one."""
    known = [built_in(oid) for oid in range(10_000)]
    assert sum(one is not None and callable(encoder_for(one, -1)) for one in known) > 140
    assert built_in(16_384) is None
