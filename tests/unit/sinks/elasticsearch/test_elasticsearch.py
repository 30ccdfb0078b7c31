"""Mappings, documents and errors of Elasticsearch, without a server."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.stores import ElasticsearchConfig
from cdc.config.tables import ColumnName
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.secrets import Secret, Url
from cdc.stores.contract import Change, Generation, PositionLostError, SchemaColumn, TableSchema
from sinks.elasticsearch.client import open_elasticsearch, problem, translated_errors
from sinks.elasticsearch.identities import FoundIndices, why_lost
from sinks.elasticsearch.mapping import fields_of
from sinks.elasticsearch.naming import OWN, field_name, index_of, own_index, split_generation, writer_alias
from sinks.elasticsearch.writing import bulk
from sinks.elasticsearch.writing.documents import Documents
from sinks.elasticsearch.writing.external_versions import NARROW, VersionScheme, numbering_after
from tests.harness.network.webhook_receiver import Receiver

positions = st.integers(1, 2**47 - 1).map(lambda number: number * 8)
versions = st.builds(Version, positions, st.integers(0, 2**32 - 1))


@given(one=versions, other=versions, narrow_to=st.none() | positions)
def test_the_servers_number_never_contradicts_the_version(one: Version, other: Version, narrow_to: int | None) -> None:
    """A larger version has a number that is at least as large, also across the position of an upgrade from 0.1.0; for
    another transaction, and for the first 32,767 changes of one, a larger number."""
    numbering = VersionScheme(narrow_to or 0)
    smaller, larger = sorted((one, other))
    assert numbering.number(smaller) <= numbering.number(larger)
    exact = smaller.position != larger.position or (narrow_to is None and smaller.seq < 32_768)
    if smaller < larger and exact:
        assert numbering.number(smaller) < numbering.number(larger)
    assert 0 <= numbering.number(one) < 2**63
    assert numbering.says(numbering.number(one), one)


@given(one=versions, other=versions, narrow_to=st.none() | positions)
def test_a_number_of_0_1_0_is_never_the_larger_one(one: Version, other: Version, narrow_to: int | None) -> None:
    """A late request of release 0.1.0 with the same or a smaller version never replaces a newer row."""
    smaller, larger = sorted((one, other))
    old = NARROW.number(smaller)
    numbering = VersionScheme(narrow_to or 0)
    assert old < numbering.number(larger) or larger.position <= numbering.narrow_to
    assert old <= numbering.number(larger)


@given(seq=st.integers(1, 2**31), more=st.integers(1, 2**30))
def test_changes_of_a_huge_transaction_are_told_apart(seq: int, more: int) -> None:
    """One by one up to 32,767; after that, if they are further apart than a thousandth of their number."""
    number = VersionScheme().number
    if seq + more < 32_768 or more > seq // 1000:
        assert number(Version(8, seq)) < number(Version(8, seq + more))


def test_a_position_past_the_servers_numbers_is_refused() -> None:
    """Rather than wrapped around; and one that is only past what has room since 0.1.0 keeps its old numbers."""
    for numbering, limit in ((VersionScheme(), 2**50), (VersionScheme(8), 2**50), (NARROW, 2**54)):
        numbering.number(Version(limit - 8, 1))
        with pytest.raises(RefusedError):
            numbering.number(Version(limit, 1))
    assert numbering_after(2**50) == NARROW
    assert numbering_after(800) == VersionScheme(800)


identifiers = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)


@given(one=identifiers, other=identifiers)
def test_field_names_are_told_apart(one: str, other: str) -> None:
    """Two columns never share a field, and no field has a name of ours or of the server."""
    assert (field_name(one) == field_name(other)) == (one == other)
    for name in (field_name(one), field_name(other)):
        assert name.strip()
        assert "." not in name
        assert name != OWN
        assert not name.startswith("_") or name.startswith("__") or "-" in name


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(columns=st.dictionaries(identifiers, values, max_size=5), version=versions)
def test_a_document_gives_its_row_back(columns: dict[str, object], version: Version) -> None:
    """A document gives its row back with the same values, and the same bytes if no column has an odd name."""
    table = TableSchema("s", "t", "x.s.t", (), tuple(SchemaColumn(name, "text", -1) for name in columns))
    row = json.dumps(columns, ensure_ascii=False).encode()
    action, document = Documents(table).lines(Change("1", b"{}", version, row), 0).splitlines()
    assert json.loads(action)["index"]["version"] == VersionScheme().number(version)
    assert json.loads(document)[OWN] == {"position": version.position, "seq": version.seq}
    found, back = Documents(table).row_of(document)
    assert found == version
    assert json.loads(back or b"") == columns
    if all(field_name(name) == name for name in columns):
        assert back == row


def test_columns_are_mapped_by_their_types() -> None:
    """A user's type with a built-in type's name is not mapped as the built-in one."""
    kinds = {
        "int8": "long",
        "_int8": "long",
        "text": "text",
        "_varchar": "text",
        "numeric": "double",
        "timestamptz": "date",
        "bool": "boolean",
        "uuid": "keyword",
        "jsonb": "keyword",
        "point": "object",
        "public.mood": "keyword",
        "public.date": "keyword",
        "public.citext": "text",
        "tstzrange": "keyword",
    }
    table = TableSchema("s", "t", "x.s.t", (), tuple(SchemaColumn(name, name, -1) for name in kinds))
    found = {name: field["type"] for name, field in fields_of(table, {}).items()}
    assert found == {field_name(name): kind for name, kind in kinds.items()}


def test_an_override_stands_instead_of_the_derived_mapping() -> None:
    """A configured mapping, nested tables included, replaces the derived one."""
    table = TableSchema(
        "public", "orders", "x.public.orders", (), (SchemaColumn("note", "text", -1), SchemaColumn("n", "int4", -1))
    )
    options = {"type": "text", "fields.raw.type": "keyword", "fields.raw.ignore_above": "10"}
    found = fields_of(table, {ColumnName("public", "orders", "note"): options})
    assert found["note"] == {"type": "text", "fields": {"raw": {"type": "keyword", "ignore_above": "10"}}}
    assert found["n"]["type"] == "integer"


def test_a_generations_indices_are_told_apart() -> None:
    """Indices of two generations are distinct, and so is a table whose name ends like a generation."""
    table = TableSchema("public", "orders-g1", "x", (), ())
    assert index_of("shop", table, 12) == "shop.public.orders-2dg1-g12"
    assert split_generation("shop.public.orders-2dg1-g12") == ("shop.public.orders-2dg1", 12)
    assert split_generation("shop.public.orders-2dg1") is None
    assert split_generation(own_index("shop", 3)) == ("shop.__tailrace", 3)
    long = TableSchema("s" * 200, "t" * 200, "x", (), ())
    assert len(writer_alias("p" * 64, long, Generation(999, 1_794_830_607_123, "loading"))) <= 255


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (401, "security_exception", RefusedError),
        (403, "security_exception", RefusedError),
        (403, "cluster_block_exception", TransientError),
        (404, "index_not_found_exception", PositionLostError),
        (429, "es_rejected_execution_exception", TransientError),
        (503, "unavailable_shards_exception", TransientError),
        (400, "illegal_argument_exception", RefusedError),
    ],
)
def test_answers_are_sorted_by_what_to_do(status: int, kind: str, expected: type[Exception]) -> None:
    """A denied request is refused, a busy server is retried, and a missing index is a loss."""
    assert type(problem(status, kind)) is expected


def test_reasons_quote_no_values() -> None:
    """A reason quotes the server's words and no values."""
    error = bulk.BulkError(
        type="document_parsing_exception",
        reason="[1:9] failed to parse field [age] of type [long] in document with id '7'. Preview: 'Ada'",
        caused_by={"reason": 'For input string: "Ada"'},
    )
    assert bulk.reason_of(error) == "field age of type long cannot hold the value (document_parsing_exception)"
    immense = bulk.BulkError(
        type="illegal_argument_exception",
        reason='Document contains at least one immense term in field="note" (whose UTF8 is longer ...): [65, 65]',
    )
    assert bulk.reason_of(immense) == "field note has a value too long for one term (illegal_argument_exception)"
    assert (
        bulk.reason_of(bulk.BulkError(type="odd", reason="Ada"))
        == "not a document that the search server accepts (odd)"
    )


@given(sizes=st.lists(st.integers(1, 50), max_size=30), limit=st.integers(10, 60))
def test_requests_hold_everything_once_within_the_limit(sizes: list[int], limit: int) -> None:
    """Requests have every item once, in order; only a single large item exceeds the limit."""
    items = [bulk.BulkItem(b"x" * size, number) for number, size in enumerate(sizes)]
    portions = list(bulk.requests(items, limit))
    assert [item for portion in portions for item in portion] == items
    assert all(len(portion) == 1 or sum(len(item.lines) for item in portion) <= limit for portion in portions)


def test_a_redirect_is_refused_and_the_key_goes_nowhere_else() -> None:
    """A server at the store's address cannot send the API key on to another server."""
    store, elsewhere = Receiver(), Receiver()
    store.redirect = (302, elsewhere.url)
    settings = ElasticsearchConfig(url=Url(store.url.removesuffix("/hook")), api_key=Secret("a-key-of-tests"))
    try:
        with pytest.raises(RefusedError, match="redirect"), translated_errors():
            open_elasticsearch(settings).info()
    finally:
        store.close()
        elsewhere.close()
    assert (len(store.asked), elsewhere.asked) == (1, [])


WRITTEN = ["index", "history 0", "history 1"]


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (FoundIndices("index", True, {0: "history 0", 1: "history 1"}), False),
        (FoundIndices("index", True, {0: "history 0", 1: "another"}), True),
        (FoundIndices("index", True, {1: "another"}), True),
        (FoundIndices("another", True, {0: "history 0", 1: "history 1"}), True),
        (None, True),
    ],
)
def test_an_index_is_known_by_its_uuid_and_histories(found: FoundIndices | None, lost: bool) -> None:
    """An index with another uuid or history is lost, and the reason names it."""
    reason = why_lost({} if found is None else {"t-g1": found}, ["t-g1"], {"t-g1": WRITTEN})
    assert (reason is not None) == lost
    assert reason is None or "t-g1" in reason


@pytest.mark.parametrize(
    "found",
    [FoundIndices("index", True, {0: "history 0"}), FoundIndices("index", False, {0: "history 0", 1: "history 1"})],
)
def test_an_index_that_is_closed_or_not_all_there_is_not_lost(found: FoundIndices) -> None:
    """A closed index, or one with an unstarted shard, is not lost."""
    with pytest.raises(TransientError) as raised:
        why_lost({"t-g1": found}, ["t-g1"], {"t-g1": WRITTEN})
    assert not isinstance(raised.value, PositionLostError)
