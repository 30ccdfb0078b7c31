"""What Elasticsearch promises beyond the contract of a store: mappings, tombstones, bulk errors, generations."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from cdc.config.tables import ColumnName
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.secrets import SecretOptions
from cdc.stores.contract import Fit, Generation, PositionLostError, SchemaColumn, Store, TableSchema
from tests.golden.documented import read_examples
from tests.harness.network.proxy import Proxy
from tests.harness.processes.waiting import eventually
from tests.harness.stores.opened_stores import apply, change, rows, store_of, table, truncate

WIDE = (
    SchemaColumn("note", "text", -1),
    SchemaColumn("price", "numeric", 786438),
    SchemaColumn("exact", "numeric", -1),
    SchemaColumn("placed", "timestamptz", -1),
    SchemaColumn("day", "date", -1),
    SchemaColumn("paid", "bool", -1),
    SchemaColumn("tags", "_text", -1),
    SchemaColumn("extra", "jsonb", -1),
    SchemaColumn("mood", "public.mood", -1),
    SchemaColumn("at", "point", -1),
)
ROW = {
    "note": "A Quick fox",
    "price": "19.90",
    "exact": "12345678901234567890.00000001",
    "placed": "2024-02-29T10:34:56.789012Z",
    "day": "2024-02-29Z",
    "paid": True,
    "tags": ["red", "dark green"],
    "extra": '{"a": {"b": 1}}',
    "mood": "ok",
    "at": {"x": 1.5, "y": "Infinity", "wkb": "AQ==", "srid": None},
}


@pytest.fixture
def store(elasticsearch_url: str, prefix: str) -> Iterator[Store]:
    opened = store_of("elasticsearch", elasticsearch_url, prefix)
    yield opened
    opened.close()


@pytest.fixture
def client(elasticsearch_url: str) -> Iterator[Elasticsearch]:
    with Elasticsearch(elasticsearch_url) as opened:
        yield opened


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix, *WIDE)


@pytest.fixture
def generation(store: Store, orders: TableSchema) -> Generation:
    return store.create_generation([orders])


def ids(client: Elasticsearch, alias: str, query: dict[str, Any]) -> set[str]:
    return {hit["_id"] for hit in client.search(index=alias, query=query, size=1000)["hits"]["hits"]}


def test_readers_search_rows_by_their_columns(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """Rows are found by words, whole texts, ranges of numbers and times, and array elements; deleted rows are not."""
    apply(store, generation, orders, [change(1, 5, ROW), change(2, 5, ROW), change(2, 6, gone=True)])
    store.switch(generation)
    alias = f"{prefix}.public.orders"
    for query in (
        {"match": {"note": "quick"}},
        {"term": {"note.keyword": "A Quick fox"}},
        {"range": {"price": {"gte": 19.9, "lt": 20}}},
        {"term": {"exact.exact": ROW["exact"]}},
        {"range": {"placed": {"gte": "2024-02-29", "lt": "2024-03-01"}}},
        {"term": {"day": "2024-02-29"}},
        {"term": {"paid": True}},
        {"match": {"tags": "green"}},
        {"term": {"mood": "ok"}},
        {"match_all": {}},
    ):
        assert ids(client, alias, query) == {"1"}, query
    found = client.get(index=alias, id="1")["_source"]
    assert {name: found[name] for name in ROW} == ROW


def test_a_search_sees_a_batch_once_it_is_published(
    client: Elasticsearch, elasticsearch_url: str, orders: TableSchema, prefix: str
) -> None:
    """A published batch is searchable at once, whatever the refresh interval is."""
    store = store_of("elasticsearch", elasticsearch_url, prefix, settings={"refresh_milliseconds": 3_600_000})
    generation = store.create_generation([orders])
    store.switch(generation)
    apply(store, generation, orders, [change(1, 5, ROW)])
    store.publish(generation, [orders])
    assert ids(client, f"{prefix}.public.orders", {"match_all": {}}) == {"1"}
    store.close()


def test_a_delete_outlives_the_servers_memory(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """After the server has forgotten a delete at v10, a replay of v9 does not restore the row."""
    client.indices.put_settings(index=f"{prefix}.public.orders-g1", settings={"index.gc_deletes": "0s"})
    apply(store, generation, orders, [change(1, 10, gone=True)])
    for _ in range(3):
        client.indices.refresh(index=f"{prefix}.public.orders-g1")
        client.indices.flush(index=f"{prefix}.public.orders-g1")
    apply(store, generation, orders, [change(1, 9, ROW)])
    assert rows(store, generation, orders) == {}


def test_tombstones_are_reaped_only_when_old_and_durable(
    store: Store, generation: Generation, orders: TableSchema
) -> None:
    """Tombstones above the given version, within the grace time or of a row that came back are kept."""
    apply(store, generation, orders, [change(key, 10, gone=True) for key in range(3)] + [change(9, 20, gone=True)])
    apply(store, generation, orders, [change(0, 11, ROW)])
    assert store.reap(generation, Version(12 * 8, 0), grace_seconds=3600) == 0
    assert store.reap(generation, Version(12 * 8, 0)) == 0
    assert store.reap(generation, Version(12 * 8, 0), grace_seconds=0) == 2
    left = {each.id: each.row is None for each in store.contents(generation, orders, tombstones=True)}
    assert left == {"0": False, "9": True}


def test_one_bad_document_of_a_thousand(elasticsearch_url: str, prefix: str) -> None:
    """Only the bad document is returned, with a reason that does not quote it; the others are written."""
    override = {ColumnName("public", "orders", "note"): SecretOptions({"type": "long"})}
    store = store_of("elasticsearch", elasticsearch_url, prefix, settings={"mapping": override})
    orders = table(prefix)
    generation = store.create_generation([orders])
    good = [change(key, 5, {"note": str(key)}) for key in range(999)]
    bad = change(5000, 5, {"note": "a secret word"})
    (rejected,) = apply(store, generation, orders, [*good[:500], bad, *good[500:]])
    assert rejected.change == bad
    assert rejected.reason == "field note of type long cannot hold the value (document_parsing_exception)"
    assert len(rows(store, generation, orders)) == 999
    store.close()


def test_a_busy_server_is_retried(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """Requests answered with 429 are sent again until accepted."""
    index = f"{prefix}.public.orders-g1"
    client.indices.put_settings(index=index, settings={"index.blocks.read_only_allow_delete": True})
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(apply, store, generation, orders, [change(1, 5, ROW)])
        eventually(lambda: client.indices.stats(index=index)["indices"] and not writing.done())
        assert any(each.level == "fail" for each in store.check())
        client.indices.put_settings(index=index, settings={"index.blocks.read_only_allow_delete": None})
        assert writing.result(timeout=60) == []
    assert set(rows(store, generation, orders)) == {"1"}


def test_a_denied_write_moves_nothing(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """An index that is closed for writes raises, and no row is reported as bad."""
    client.indices.put_settings(index=f"{prefix}.public.orders-g1", settings={"index.blocks.write": True})
    with pytest.raises(TransientError):
        apply(store, generation, orders, [change(1, 5, ROW)])


def test_a_delayed_request_with_an_older_version_is_ignored(
    elasticsearch_url: str, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """An old writer's delayed bulk request arrives after the new writer's, and changes nothing."""
    host, _, port = elasticsearch_url.partition("://")[2].rpartition(":")
    with Proxy(host, int(port)) as proxy, ThreadPoolExecutor(1) as pool:
        stuck = store_of("elasticsearch", f"http://{proxy.address}", prefix)
        assert stuck.count(generation, orders) == 0
        writer = stuck.writer_factory(generation)()
        writer.apply(orders, [change(99, 1, ROW)])
        proxy.blackhole()
        late = pool.submit(writer.apply, orders, [change(1, 5, {"note": "old"}), change(2, 5), change(3, 5)])
        apply(store, generation, orders, [change(1, 7, {"note": "new"}), change(2, 6, gone=True)])
        # As the contract says: the dead rows of the batch are deletes at the marker's version.
        truncate(store, generation, orders, Version(48, 2))
        apply(store, generation, orders, [change(3, Version(48, 2), gone=True)])
        proxy.restore()
        assert late.result(timeout=60) == []
        writer.close()
        stuck.close()
    assert rows(store, generation, orders) == {"1": {"id": 1, "note": "new"}}


def test_bulk_requests_are_cut_by_bytes(elasticsearch_url: str, prefix: str) -> None:
    """Rows larger than a bulk request are sent alone, and none is lost."""
    store = store_of("elasticsearch", elasticsearch_url, prefix, settings={"bulk_bytes": 100_000})
    orders = table(prefix)
    generation = store.create_generation([orders])
    sizes = [10, 99_000, 300_000, 50, 60_000, 60_000, 10]
    assert (
        apply(store, generation, orders, [change(key, 5, {"note": "x" * size}) for key, size in enumerate(sizes)]) == []
    )
    assert {key: len(row["note"]) for key, row in rows(store, generation, orders).items()} == {
        str(key): size for key, size in enumerate(sizes)
    }
    store.close()


def test_a_row_that_no_request_can_carry_comes_back_alone(elasticsearch_url: str, prefix: str) -> None:
    """A bulk request over the server's limit (413) is halved until only the row that does not fit is returned."""
    store = store_of("elasticsearch", elasticsearch_url, prefix, settings={"bulk_bytes": 300_000_000})
    orders = table(prefix)
    generation = store.create_generation([orders])
    large = "x" * 105_000_000
    changes = [change(key, 5, {"note": large if key == 3 else "small"}) for key in range(7)]
    (rejected,) = apply(store, generation, orders, changes)
    assert (rejected.change.id, "http.max_content_length" in rejected.reason) == ("3", True)
    assert rows(store, generation, orders).keys() == {str(key) for key in range(7) if key != 3}
    store.close()


def test_columns_whose_names_mean_something_to_the_server(store: Store, prefix: str) -> None:
    """Rows keep their column names, also reserved ones and names with dots, blanks or quotes."""
    names = [
        "_id",
        "_source",
        "_tailrace",
        "_",
        "a.b",
        "a",
        "a..b",
        ".",
        " ",
        "é.ü",
        'q"\\',
        "a]b",
        "*",
        "__id",
        "_-20",
    ]
    odd = table(prefix, *(SchemaColumn(name, "text", -1) for name in names))
    generation = store.create_generation([odd])
    row = {name: f"value of {name}" for name in names}
    assert apply(store, generation, odd, [change(1, 5, row)]) == []
    assert rows(store, generation, odd) == {"1": {"id": 1, **row}}


def test_a_new_column_is_indexed_and_a_new_type_asks_for_a_generation(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """A new column is mapped in place; a changed type is reported, keeps flowing, and is right in the next
    generation.
    """
    store.switch(generation)
    wider = orders._replace(columns=(*orders.columns, SchemaColumn("size", "int4", -1)))
    assert store.ensure_table(generation, wider) is Fit.READY
    apply(store, generation, wider, [change(1, 5, {**ROW, "size": 7})])
    store.publish(generation, [wider])
    assert ids(client, f"{prefix}.public.orders", {"range": {"size": {"gt": 6}}}) == {"1"}
    retyped = orders._replace(columns=(*orders.columns, SchemaColumn("size", "text", -1)))
    assert store.ensure_table(generation, retyped) is Fit.NEEDS_GENERATION
    assert apply(store, generation, retyped, [change(2, 6, {**ROW, "size": "large"})]) == []
    assert store.count(generation, retyped) == 2
    second = store.create_generation([retyped])
    apply(store, second, retyped, [change(2, 6, {**ROW, "size": "large"})])
    store.switch(second)
    assert ids(client, f"{prefix}.public.orders", {"match": {"size": "large"}}) == {"2"}


def test_a_table_may_grow_very_wide(store: Store, generation: Generation, orders: TableSchema) -> None:
    """A table may have as many text columns as Postgres allows."""
    wide = orders._replace(columns=(*orders.columns, *(SchemaColumn(f"c{n}", "text", -1) for n in range(1589))))
    assert store.ensure_table(generation, wide) is Fit.READY
    assert apply(store, generation, wide, [change(1, 5, {f"c{n}": "x" for n in range(1589)})]) == []
    assert store.count(generation, wide) == 1


def test_a_table_that_comes_later_is_seen_at_once(
    client: Elasticsearch, store: Store, generation: Generation, prefix: str
) -> None:
    """A table added to the serving generation has its alias at once."""
    store.switch(generation)
    late = table(prefix, name="late")
    assert store.ensure_table(generation, late) is Fit.READY
    apply(store, generation, late, [change(1, 5)])
    store.publish(generation, [late])
    assert ids(client, f"{prefix}.public.late", {"match_all": {}}) == {"1"}
    index = f"{prefix}.public.late-g1"
    settings = client.indices.get_settings(index=index, flat_settings=True)[index]["settings"]
    assert settings["index.refresh_interval"] == "1000ms", "it is not being loaded"


def test_readers_see_whole_generations_only(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """During a switch a reader of two tables never sees one of each generation, nor half a table."""
    other = table(prefix, name="other")
    store.ensure_table(generation, other)
    second = store.create_generation([orders, other])
    for each, count in ((generation, 40), (second, 60)):
        for what in (orders, other):
            apply(store, each, what, [change(key, 5) for key in range(count)])
        store.settle(each)
    store.switch(generation)
    counts: list[int] = []
    enough = threading.Event()

    def read() -> None:
        while not enough.is_set():
            counts.append(client.count(index=[f"{prefix}.public.orders", f"{prefix}.public.other"])["count"])

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            for serving in (second, generation, second, generation):
                store.switch(serving)
                wanted = len(counts) + 2  # the next one may have begun before the switch
                eventually(lambda wanted=wanted: len(counts) >= wanted, 60, "counts after the switch")
        finally:
            enough.set()
        reading.result(timeout=60)
    assert set(counts) == {80, 120}


def test_loading_is_tuned_for_loading_and_serving_for_readers(
    client: Elasticsearch, store: Store, generation: Generation, prefix: str
) -> None:
    """A generation has no refreshes and replicas while it is built, and both before it serves."""
    index = f"{prefix}.public.orders-g1"
    settings = client.indices.get_settings(index=index, flat_settings=True)[index]["settings"]
    assert (settings["index.refresh_interval"], settings["index.number_of_replicas"]) == ("-1", "0")
    store.switch(generation)
    settings = client.indices.get_settings(index=index, flat_settings=True)[index]["settings"]
    assert (settings["index.refresh_interval"], settings["index.auto_expand_replicas"]) == ("1000ms", "0-1")


def test_a_dropped_generation_does_not_come_back(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """A writer that still runs cannot make the server create an index under the old name."""
    writer = store.writer_factory(generation)()
    writer.apply(orders, [change(1, 5)])
    store.drop(generation)
    for attempt in (
        lambda: writer.apply(orders, [change(2, 5)]),
        lambda: writer.truncate(orders, Version(80, 1)),
        lambda: apply(store, generation, orders, [change(3, 5)]),
    ):
        with pytest.raises(PositionLostError):
            attempt()
    assert client.indices.get(index=f"{prefix}.*").body == {}
    again = store.create_generation([orders])
    assert again.number == generation.number
    with pytest.raises(PositionLostError):
        writer.apply(orders, [change(2, 5)])
    writer.close()
    assert store.count(again, orders) == 0, "the old writer cannot write into what has its number now"


def test_an_index_that_was_deleted_by_hand_is_missed(
    client: Elasticsearch, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """A generation with a deleted index is lost, the index is not created again, and a new generation serves."""
    store.switch(generation)
    store.take(generation, "one")
    client.indices.delete(index=f"{prefix}.public.orders-g1")
    assert store.position(generation) is None
    with pytest.raises(PositionLostError):
        store.take(generation, "one")
    with pytest.raises(PositionLostError):
        store.ensure_table(generation, orders)
    with pytest.raises(PositionLostError):
        store.switch(generation)
    assert store.serving() is None
    second = store.create_generation([orders])
    store.switch(second)
    store.drop(generation)
    assert [each.number for each in store.list_generations()] == [second.number]


def test_a_name_that_is_taken_is_refused(
    client: Elasticsearch, store: Store, generation: Generation, prefix: str
) -> None:
    """An index under the name of the alias is reported, and no switch is made."""
    client.indices.create(index=f"{prefix}.public.orders")
    with pytest.raises(RefusedError, match="must be an alias"):
        store.switch(generation)
    assert store.serving() is None


TYPES: dict[str, tuple[str, int]] = {
    name: (name, -1)
    for name in ("int2", "int4", "int8", "float4", "float8", "bool", "money", "oid", "date", "timestamptz", "text")
} | {
    "uuid": ("uuid", -1),
    "jsonb": ("jsonb", -1),
    "bytea": ("bytea", -1),
    "point": ("point", -1),
    "small": ("numeric", 786438),
    "any": ("numeric", -1),
    "bit": ("bit", 1),
    "list": ("_int8", -1),
    "mine": ("public.mood", -1),
}


def test_no_value_is_ever_changed(store: Store, prefix: str) -> None:
    """Every documented value in a column of any type is kept unchanged or rejected."""
    wide = table(prefix, *(SchemaColumn(name, *kind) for name, kind in TYPES.items()))
    generation = store.create_generation([wide])
    values = [json.loads(example.json) for example in read_examples()]
    values += [None, "9" * 400, 10**18, -(2**63), 1e308, 5e-324, "\u0000", "x" * 40_000, [], [[], [None]], "1e999"]
    changes = [
        change(f"{column}:{place}", 5, {column: value}) for column in TYPES for place, value in enumerate(values)
    ]
    rejected = {each.change.id for each in apply(store, generation, wide, changes)}
    expected = {each.id: json.loads(each.row or b"") for each in changes if each.id not in rejected}
    assert rows(store, generation, wide) == expected
    objects = {place for place, value in enumerate(values) if "wkb" in json.dumps(value)}
    assert rejected
    assert {int(each.rpartition(":")[2]) for each in rejected} <= objects, "only objects fit nowhere else"
    assert not any(each.startswith("point:") for each in rejected)
