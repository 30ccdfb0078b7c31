"""The config names tables and columns as SQL identifiers, without case folding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config import ColumnName, Mask, TableSelector

identifiers = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0") | st.sampled_from('."*- aA_0'),
    min_size=1,
    max_size=15,
).filter(lambda name: len(name.encode()) <= 63)


@given(identifiers, identifiers | st.none())
def test_a_selector_survives_its_text(schema: str, table: str | None) -> None:
    """Any schema and table can be named, quotes and dots included, and prints as it can be written."""
    selector = TableSelector(schema, table)
    assert TableSelector.parse(str(selector)) == selector


@given(identifiers, identifiers, identifiers)
def test_a_column_survives_its_text(schema: str, table: str, column: str) -> None:
    """The same for a column in [mask]."""
    name = ColumnName(schema, table, column)
    assert ColumnName.parse(str(name)) == name


def test_plain_names_need_no_quotes() -> None:
    """Plain names are written without quotes, and others in quotes as in SQL."""
    assert TableSelector.parse("public.order_items") == TableSelector("public", "order_items")
    assert TableSelector.parse("public.*") == TableSelector("public", None)
    assert TableSelector.parse('public."*"') == TableSelector("public", "*")
    assert TableSelector.parse('"My.Schema"."a""b"') == TableSelector("My.Schema", 'a"b')
    assert TableSelector.parse("öffentlich.aufträge") == TableSelector("öffentlich", "aufträge")
    assert str(TableSelector("public", "Odd.Name")) == 'public."Odd.Name"'


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "*", "*.*", "public.", ".orders", "a.b.c", "a..b", "a.*.*", 'a."b".*', " a.b", "a.b "),
        *("public.Orders", 'public."x', 'public.""', "a.b c", "a.b-c", 'a."b"c', "a.1b", "public.or*"),
        f"a.{'b' * 64}",
    ],
)
def test_what_is_no_table_is_refused(text: str) -> None:
    """An ambiguous name is an error that says how to write it."""
    with pytest.raises(ValueError, match=r"expected|is not a dotted name|has "):
        TableSelector.parse(text)


@pytest.mark.parametrize("text", ["hash", "null", "none", "fixed:", "fixed:a:b"])
def test_masks_survive_their_text(text: str) -> None:
    """Every kind of mask survives, a fixed text with colons or an empty one included."""
    assert str(Mask.parse(text)) == text


@pytest.mark.parametrize("text", ["", "Hash", "fixed", "sha256"])
def test_unknown_masks_are_refused(text: str) -> None:
    """A mistyped mask is refused."""
    with pytest.raises(ValueError, match="expected hash, null, fixed:TEXT or none"):
        Mask.parse(text)
