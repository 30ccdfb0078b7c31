"""Masks: what replaces a value, which columns a mask covers, and what would publish a masked value."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.tables import ColumnName, Mask, MaskKind, TableName
from cdc.encoding.masks import mask_encoder, masks_of
from cdc.errors import RefusedError
from cdc.pgoutput.messages import UNCHANGED
from cdc.tables import schema_record
from cdc.tables.mask_rules import refuse_lost_mask
from cdc.tables.recorded_state import CatalogColumn, TableState
from tests.harness.pipeline.event_rules import INT8, TEXT, make_table

HASH, NULL, FIXED = Mask(MaskKind.HASH), Mask(MaskKind.NULL), Mask(MaskKind.FIXED, 'a "b"\\')
PEOPLE = TableName("public", "people")


def _state(*columns: str, table: str = "people") -> TableState:
    return TableState(
        schema="public",
        table=table,
        topic=f"shop.public.{table}",
        key=["id"],
        storage="1",
        columns=[CatalogColumn(number, name, TEXT, -1, "1", False) for number, name in enumerate(columns, 1) if name],
    )


def _masks(*columns: str, table: str = "people") -> dict[ColumnName, Mask]:
    return {ColumnName("public", table, column): HASH for column in columns}


@given(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8")), st.binary(max_size=20))
def test_a_hash_is_that_of_the_text_under_the_salt(text: str, salt: bytes) -> None:
    """A hash can be computed elsewhere with the salt, and does not contain the text."""
    encoded = mask_encoder(HASH, salt)(text.encode())
    assert json.loads(encoded) == hmac.new(salt, text.encode(), hashlib.sha256).hexdigest()


def test_null_and_fixed_do_not_depend_on_the_value() -> None:
    """`null` and `fixed` give the same JSON for every value."""
    for value in (b"", b"secret", b"\xff"):
        assert mask_encoder(NULL, b"s")(value) == b"null"
        assert json.loads(mask_encoder(FIXED, b"s")(value)) == FIXED.text


def test_null_stays_null_under_every_mask() -> None:
    """NULL stays NULL under every mask."""
    columns = [("id", INT8, True), ("a", TEXT, False), ("b", TEXT, False), ("c", TEXT, False)]
    table = make_table(columns=columns, masks={"a": HASH, "b": NULL, "c": FIXED})
    assert json.loads(table.encode_row([b"1", None, None, None])) == {"id": 1, "a": None, "b": None, "c": None}


def test_only_a_hash_needs_a_value_that_was_left_out() -> None:
    """Only a hash causes a re-select of a left-out value."""
    columns = [(name, TEXT, name == "id") for name in ("id", "a", "b", "c", "d")]
    table = make_table(
        columns=columns, masks={"a": HASH, "b": NULL, "c": FIXED}, columns_published=("id", "a", "b", "c")
    )
    assert table.missing_toast_indexes([b"1", UNCHANGED, UNCHANGED, UNCHANGED, UNCHANGED]) == [1]
    row = json.loads(table.encode_row([b"1", b"x", UNCHANGED, UNCHANGED, UNCHANGED]))
    assert list(row) == ["id", "a", "b", "c"]
    assert (row["b"], row["c"]) == (None, FIXED.text)


def test_the_schema_says_what_is_published() -> None:
    """In the schema, hashed and fixed columns are text, and withheld columns are absent."""
    columns = [("id", INT8, True), ("a", INT8, False), ("b", INT8, False), ("c", INT8, False)]
    table = make_table(columns=columns, masks={"id": HASH, "a": FIXED, "b": NULL}, columns_published=("id", "a", "b"))
    described = {column["name"]: column["type"] for column in schema_record.describe(table)["columns"]}
    assert described == {"id": "text", "a": "text", "b": "int8"}


@pytest.mark.parametrize("mask", [NULL, FIXED])
def test_a_key_can_only_be_hashed(mask: Mask) -> None:
    """Any other mask of a key is refused, since all rows would become one."""
    with pytest.raises(RefusedError, match="part of the key"):
        make_table(masks={"id": mask})
    assert make_table(masks={"id": HASH}).encode_key([b"1", None]).startswith(b'{"id":"')


def test_masks_hold_for_their_table_only() -> None:
    """A mask does not cover the same column name in another table."""
    masks = {**_masks("email"), **_masks("name", table="other")}
    assert masks_of(masks, PEOPLE, ["id", "email", "name"], {"id", "email", "name"}) == {"email": HASH}


def test_an_unknown_column_of_a_masked_table_is_hashed() -> None:
    """In a table with masks an unknown column is hashed, since it may be a renamed masked column."""
    seen = {"id", "email"}
    assert masks_of(_masks("email"), PEOPLE, ["id", "mail"], seen) == {"mail": HASH}
    assert masks_of({}, PEOPLE, ["id", "mail"], seen) == {}


@pytest.mark.parametrize(
    ("now", "masks"),
    [
        (_state("id", "mail"), _masks("email")),
        (_state("id", "email", table="persons"), _masks("email")),
        (_state("email", "id"), _masks("email")),  # swapped names
    ],
)
def test_a_mask_that_a_rename_took_away_is_refused(now: TableState, masks: dict[ColumnName, Mask]) -> None:
    """A renamed masked column is refused, and the remedy names the column as the config must write it."""
    with pytest.raises(RefusedError, match="which is not") as refused:
        refuse_lost_mask(masks, _state("id", "email"), now)
    assert f"public.{now.table}." in (refused.value.remedy or "")


def _is_refused(masks: dict[ColumnName, Mask], before: TableState | None, now: TableState) -> bool:
    try:
        refuse_lost_mask(masks, before, now)
    except RefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("now", "masks", "refused_with"),
    [
        pytest.param(_state("id", "mail"), _masks("email", "mail"), _masks("email"), id="the new name is masked too"),
        pytest.param(_state("key", ""), _masks("email"), _masks("email", "id"), id="dropped"),
        pytest.param(_state("key", "", "email"), _masks("email"), _masks("id"), id="dropped and added again"),
        pytest.param(_state("key", "email"), _masks("email"), _masks("id"), id="another column was renamed"),
        pytest.param(_state("id", "mail"), {}, _masks("email"), id="no mask at all"),
    ],
)
def test_other_changes_leave_masks_alone(
    now: TableState, masks: dict[ColumnName, Mask], refused_with: dict[ColumnName, Mask]
) -> None:
    """A change is refused only where a masked column has a new name without a mask; the same change with
    `refused_with` loses a mask."""
    before = _state("id", "email")
    assert not _is_refused(masks, before, now)
    assert _is_refused(refused_with, before, now)


def test_a_table_that_did_not_change_has_lost_no_mask() -> None:
    """An unchanged table is accepted for any masks, and swapped column names are refused."""
    before, masks = _state("id", "email"), _masks("email")
    assert not _is_refused(masks, before, _state("id", "email"))
    assert _is_refused(masks, before, _state("email", "id"))


def test_a_table_that_was_never_seen_has_no_mask_to_lose() -> None:
    """Without an earlier state a table is accepted; with one, the same config is refused."""
    assert not _is_refused(_masks("email"), None, _state("id", "mail"))
    assert _is_refused(_masks("email"), _state("id", "email"), _state("id", "mail"))
