"""Two rows are compared by bytes where columns never changed, and otherwise by values."""

from __future__ import annotations

import pytest

from cdc.audit.row_content import Content

EXACT = Content.of(["id", "v"], [["id", "v"]])
CHANGED = Content.of(["id", "v", "late"], [["id", "v"], ["id", "old", "v"], ["id", "v", "late"]])


def test_columns_that_never_changed_are_compared_as_bytes() -> None:
    """Only tables whose columns never changed are compared as bytes."""
    assert EXACT.exact
    assert not CHANGED.exact
    assert CHANGED.former == {"old"}
    assert not Content.of(["a", "b"], [["b", "a"]]).exact


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"id":1,"v":"a"}', b'{"id":1,"v":"a","late":null}', True),
        (b'{"id":1,"v":"a"}', b'{"id":1,"old":5,"v":"a"}', True),
        (b'{"id":1,"v":"a"}', b'{"v":"a","id":1}', True),
        (b'{"id":1,"v":"a"}', b'{"id": 1, "v": "\\u0061"}', True),
        (b'{"id":1,"v":"a"}', b'{"id":1,"v":"b"}', False),
        (b'{"id":1,"v":"a"}', b'{"id":1,"v":"a","new":1}', False),
        (b'{"id":1,"v":"a"}', b'{"id":1}', False),
        (b'{"id":1,"v":1.10}', b'{"id":1,"v":1.1}', False),
        (b'{"id":1,"v":[1,[2,null]]}', b'{"id":1,"v":[1,[2,null]]}', True),
        (b'{"id":1}', b"not json", False),
    ],
)
def test_values_decide(one: bytes, other: bytes, same: bool) -> None:
    """NULL, absent values, former columns, order and escapes do not matter; digits do."""
    assert CHANGED.same(one, other) is same
    assert (CHANGED.digest(one) == CHANGED.digest(other)) is same


def test_no_row_is_only_like_no_row() -> None:
    """A row that is missing on one side differs."""
    assert EXACT.same(None, None)
    assert not EXACT.same(None, b"{}")


def test_fields_that_differ_are_named() -> None:
    """The names of fields that differ are given, and no values."""
    assert CHANGED.differing_fields(b'{"id":1,"v":"a","old":1}', b'{"id":1,"v":"b"}') == ["v"]
    assert CHANGED.differing_fields(b'{"id":1,"v":"a","late":"x"}', b'{"id":1,"v":"a"}') == ["late"]


SPELLED = Content.of(["id", "v", "n"], [["id", "v", "n"]], ["v"])


@pytest.mark.parametrize(
    ("value", "text", "same"),
    [
        (b"7", b'"7"', True),
        (b"true", b'"true"', True),
        (b"1e+20", b'"1.0E20"', True),
        (b"123456789.5", b'"1.234567895E8"', True),
        (b'{"x":1.5,"y":"NaN"}', b'"{\\"y\\": \\"NaN\\", \\"x\\": 1.50}"', True),
        (b'["a","b"]', b'"[\\"a\\",\\"b\\"]"', True),
        (b'"[not json"', b'"[not json"', True),
        (b"null", b'"null"', False),
        (b"7", b'"8"', False),
        (b'"1234567890123456789.1"', b'"1234567890123456789.2"', False),
        (b"9007199254740993", b'"9007199254740992"', False),
    ],
)
def test_a_column_that_is_spelled_otherwise_is_compared_by_its_text(value: bytes, text: bytes, same: bool) -> None:
    """Only the column with another spelling is compared by its text, and no digit is lost."""
    one, other = b'{"id":1,"v":%b,"n":1}' % value, b'{"id":1,"v":%b,"n":1}' % text
    assert not SPELLED.exact
    assert SPELLED.same(one, other) is same
    assert SPELLED.differing_fields(one, other) == ([] if same else ["v"])
    assert not SPELLED.same(one, one.replace(b'"n":1', b'"n":"1"'))
